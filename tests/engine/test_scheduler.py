# SPDX-License-Identifier: Apache-2.0
"""Order of service, fair portions of prompts, and the budget that keeps decoding requests from waiting."""

from __future__ import annotations

import dataclasses
import threading

from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair.grid import GRID
from sparkpair.scheduler import Admission, SliceBudget, fill_shares


@dataclasses.dataclass(eq=False)
class Job:
    name: str
    background: bool = False


def names(jobs: list[Job]) -> str:
    return "".join(job.name for job in jobs)


def queue(lanes: int, *jobs: Job) -> Admission[Job]:
    admission: Admission[Job] = Admission(lanes)
    for job in jobs:
        assert admission.add(job)
    return admission


def admit(admission: Admission[Job], running: int, room: str = "abcd") -> str:
    """The names of all jobs that start now beside `running` ones; those in `room` fit."""
    admitted = ""
    while job := admission.admit(running + len(admitted), lambda job: job.name in room):
        admitted += job.name
        if admission.waiting == 0:
            break
    return admitted


def test_requests_are_admitted_in_order_up_to_the_lanes() -> None:
    admission = queue(2, Job("a"), Job("b"), Job("c"))
    assert admit(admission, 0) == "ab"
    assert admission.waiting == 1
    assert admit(admission, 2) == ""
    assert admit(admission, 1) == "c"


def test_background_requests_wait_behind_foreground_requests_that_came_later() -> None:
    admission = queue(1, Job("a", True), Job("b"), Job("c", True), Job("d"))
    assert "".join(admit(admission, 0) for _ in range(4)) == "bdac"


def test_a_background_request_never_takes_the_last_lane() -> None:
    admission = queue(3, Job("a", True), Job("b", True), Job("c", True))
    assert admit(admission, 0) == "ab"
    admission.add(Job("d"))
    assert admit(admission, 2) == "d"


def test_one_that_does_not_fit_is_not_overtaken_and_comes_first_when_there_is_room() -> None:
    admission = queue(4, Job("a"), Job("b"), Job("c"))
    assert admit(admission, 1, room="ac") == "a"
    assert admit(admission, 2, room="ac") == ""
    assert admit(admission, 2) == "bc"


def test_a_dropped_request_is_never_admitted_and_the_order_of_the_rest_is_kept() -> None:
    jobs = [Job(name) for name in "abcd"]
    admission = queue(4, *jobs)
    assert admission.drop(jobs[1])
    assert not admission.drop(jobs[1])
    assert admit(admission, 0) == "acd"
    assert not admission.drop(jobs[0])


def test_an_idle_engine_wakes_when_a_request_comes() -> None:
    admission: Admission[Job] = Admission(1)
    admitted: list[str] = []
    taker = threading.Thread(target=lambda: admitted.append(admit(admission, 0)))
    taker.start()
    admission.add(Job("a"))
    taker.join(10)
    assert admitted == ["a"]


def test_closing_wakes_the_engine_returns_what_waited_and_refuses_more() -> None:
    admission = queue(1, Job("a"), Job("b", True))
    assert names(admission.close()) == "ab"
    assert admission.admit(0, lambda job: True) is None
    assert not admission.add(Job("late"))


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=8), st.integers(0, 1024))
def test_portions_are_whole_blocks_within_the_rows_and_the_oldest_always_reads(remaining: list[int], rows: int) -> None:
    shares = fill_shares(remaining, rows)
    for share, left in zip(shares, remaining, strict=True):
        assert 0 <= share <= left
        assert share == left or share % GRID == 0
    assert shares[0] >= min(GRID, remaining[0])
    assert sum(shares) <= max(rows, GRID)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=8), st.integers(64, 1024))
def test_no_room_is_left_while_somebody_could_use_a_block(remaining: list[int], rows: int) -> None:
    shares = fill_shares(remaining, rows)
    room = rows - sum(shares)
    wanted = [min(GRID, left - share) for share, left in zip(shares, remaining, strict=True) if share < left]
    assert all(block > room for block in wanted)


def test_waiting_prompts_are_read_together() -> None:
    assert fill_shares([1000, 1000, 30], 256) == [128, 64, 30]


def test_unknown_units_run_alone_and_known_ones_together_up_to_the_budget() -> None:
    budget = SliceBudget(0.2, 1024, 4)
    assert budget.rows(decoding=False) == 1024
    assert budget.next_units(0, 1024, decoding=False) == 4
    for unit, seconds in enumerate((0.05, 0.1, 0.04, 0.01)):
        assert budget.rows(decoding=True) <= 256
        assert budget.next_units(unit, 64, decoding=True) == 1
        budget.measured(unit, 1, 64, seconds)
    assert budget.rows(decoding=True) == 128  # the slowest unit of two blocks takes all of the budget
    assert budget.next_units(0, 64, decoding=True) == 4
    assert [budget.next_units(first, 128, decoding=True) for first in (0, 1, 2)] == [1, 1, 2]


def test_a_slower_unit_counts_at_once_and_a_faster_one_by_and_by() -> None:
    budget = SliceBudget(0.2, 1024, 1)
    budget.measured(0, 1, 64, 0.05)
    assert budget.rows(decoding=True) == 256
    budget.measured(0, 1, 64, 0.1)
    assert budget.rows(decoding=True) == 128
    budget.measured(0, 1, 64, 0.05)
    assert budget.rows(decoding=True) == 128
    budget.measured(0, 1, 64, 10.0)
    assert budget.rows(decoding=True) == GRID


def test_without_a_budget_prompts_are_read_in_whole_chunks() -> None:
    budget = SliceBudget(0.0, 512, 8)
    assert not budget.cuts
    assert budget.rows(decoding=True) == 512


@dataclasses.dataclass
class Clock:
    """A model whose units cost `seconds` for a row, a little more with every portion, and rounds of `round_s`."""

    seconds: list[float]
    round_s: float
    growth: float
    gaps: list[float] = dataclasses.field(default_factory=list)

    def read(self, budget: SliceBudget, tokens: int) -> None:
        """Read a prompt of `tokens` beside decoding requests, as the engine does."""
        while tokens:
            (rows,) = fill_shares([tokens], budget.rows(decoding=True))
            unit = 0
            while unit < budget.units:
                count = budget.next_units(unit, rows, decoding=True)
                slice_s = rows * sum(self.seconds[unit : unit + count])
                budget.measured(unit, count, rows, slice_s)
                self.gaps.append(self.round_s + slice_s)
                unit += count
            assert unit == budget.units
            tokens -= rows
            self.seconds = [cost * self.growth for cost in self.seconds]


@given(
    st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=46),
    st.floats(0.02, 1.0),
    st.floats(0.001, 0.5),
    st.floats(1.0, 1.01),
    st.integers(1, 1500),
)
@settings(max_examples=200, deadline=None)
def test_no_gap_is_longer_than_the_budget_and_a_round_even_where_a_block_takes_many_budgets(
    shape: list[float], budget_s: float, round_s: float, growth: float, tokens: int
) -> None:
    # The slowest layer of one block takes all of the budget at the end of the prompt, so whole blocks take up to 46.
    grown = growth ** (tokens // GRID + 2)
    clock = Clock([cost / max(shape) * budget_s / GRID / grown for cost in shape], round_s, growth)
    budget = SliceBudget(budget_s, 256, len(shape))
    clock.read(budget, tokens)
    # What grows from one portion to the next is known only after it.
    assert max(clock.gaps) <= budget_s * growth * 1.0001 + round_s
    # And it goes on: a slice is one unit, or more than half of the budget, or the last of its portion.
    assert len(clock.gaps) <= len(shape) * (tokens // GRID + 1)


def test_slices_use_the_budget() -> None:
    clock = Clock([0.001] * 46, 0.05, 1.0)  # one block: 2.9 seconds
    budget = SliceBudget(0.2, 256, 46)
    clock.read(budget, 64)
    assert len(clock.gaps) == 46  # unknown layers one by one, this once
    clock.gaps.clear()
    clock.read(budget, 1280)
    assert max(clock.gaps) <= 0.25 + 1e-9
    assert sum(clock.gaps) - 0.05 * len(clock.gaps) > 0.8 * 0.2 * len(clock.gaps)
