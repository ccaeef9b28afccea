# SPDX-License-Identifier: Apache-2.0
"""The startup estimate refuses what does not fit and names the largest window that does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.errors import DoesNotFit
from sparkpair.memory import GIB, MemoryPlan, estimate_line, settle_window

NATIVE = 1_048_576


def plan(budget: int, *, fixed: int = GIB, per_token: int = 1024, parallel: int = 1) -> MemoryPlan:
    return MemoryPlan(
        stored_weights=0, weights=0, fixed=fixed, per_token=per_token, per_stream=0, parallel=parallel, budget=budget
    )


@given(st.integers(0, 4 * GIB), st.integers(1, 10_000), st.integers(1, 8))
def test_the_largest_window_fits_and_one_step_more_does_not(budget: int, per_token: int, parallel: int) -> None:
    found = plan(budget, per_token=per_token, parallel=parallel)
    window = found.largest_window(NATIVE)
    assert window == 0 or found.needed(window) <= budget
    if window < NATIVE:
        assert found.needed(window + 1) > budget


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
