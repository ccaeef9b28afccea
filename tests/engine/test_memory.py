# SPDX-License-Identifier: Apache-2.0
"""The startup estimate refuses what does not fit, names the largest window that does, and sizes the pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.cache.extents import UNIT
from sparkpair.errors import DoesNotFit
from sparkpair.memory import GIB, MemoryPlan, PoolPlan, estimate_line, settle_window

NATIVE = 1_048_576


def plan(
    budget: int,
    *,
    fixed: int = GIB,
    per_token: int = 1024,
    cache_bytes: int = 0,
    cache_entries: int = 0,
    entry_bytes: int = 1,
) -> MemoryPlan:
    return MemoryPlan(
        stored_weights=0,
        weights=0,
        fixed=fixed,
        row_bytes=per_token,
        scratch_bytes=0,
        stream_bytes=0,
        entry_bytes=entry_bytes,
        parallel=1,
        cache_bytes=cache_bytes,
        cache_entries=cache_entries,
        budget=budget,
    )


@given(st.integers(0, 4 * GIB), st.integers(1, 10_000))
def test_the_largest_window_fits_and_one_step_more_does_not(budget: int, per_token: int) -> None:
    found = plan(budget, per_token=per_token)
    window = found.largest_window(NATIVE)
    assert window == 0 or found.least(window) <= budget
    if window < NATIVE:
        assert found.least(window + 1) > budget


@given(
    budget=st.integers(2 * GIB, 4 * GIB),
    per_token=st.integers(1, 1000),
    cache=st.integers(0, 4 * GIB),
    entries=st.integers(0, 64),
    entry=st.integers(1, 2**27),
    window=st.integers(1, 100_000),
)
def test_the_pool_holds_the_window_and_stays_within_settings_and_budget(
    budget: int, per_token: int, cache: int, entries: int, entry: int, window: int
) -> None:
    found = plan(budget, per_token=per_token, cache_bytes=cache, cache_entries=entries, entry_bytes=entry)
    pool = found.pool(window)
    assert pool.tokens >= window
    assert pool.tokens % UNIT == 0
    assert pool.entries <= entries
    assert found.least(window) <= found.needed(window) <= budget
    assert found.needed(window) - found.least(window) <= cache
    # No room is left that another unit could have had.
    if pool.entries == entries:
        more = found.needed(window) + 2 * UNIT * per_token
        assert more > min(budget, found.least(window) + cache)


def test_kept_states_are_taken_out_of_the_room_beyond_the_window() -> None:
    found = plan(2 * GIB, per_token=1024, cache_bytes=64 * 2**20, cache_entries=8, entry_bytes=4 * 2**20)
    assert found.pool(4096) == PoolPlan(tokens=4096 + 32 * 1024, entries=8)


def test_zero_asks_for_the_largest_window() -> None:
    assert settle_window(plan(GIB + 100 * 2**20), 0, NATIVE) == 102_400


def test_an_asked_window_is_taken_when_it_fits() -> None:
    assert settle_window(plan(2 * GIB), 4096, NATIVE) == 4096


def test_a_window_that_does_not_fit_is_refused_with_the_figures_and_the_remedy() -> None:
    with pytest.raises(DoesNotFit, match=r"1048576 tokens needs 2\.00 GiB, and 1\.50 GiB .*--context"):
        settle_window(plan(GIB * 3 // 2), NATIVE, NATIVE)


def test_nothing_fits_without_memory() -> None:
    with pytest.raises(DoesNotFit):
        settle_window(plan(-GIB), 0, NATIVE)


def test_the_line_reads_as_the_deployment_expects() -> None:
    assert (
        estimate_line(plan(2 * GIB), 4096)
        == "startup estimate 1.00 GiB within 2.00 GiB: window 4096 tokens, 1 request at once"
    )
