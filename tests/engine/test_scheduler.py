# SPDX-License-Identifier: Apache-2.0
"""Order of service, fair portions of prompts, and the budget that keeps decoding requests from waiting."""

from __future__ import annotations

import dataclasses
import threading

from hypothesis import given
from hypothesis import strategies as st
from sparkpair.grid import GRID
from sparkpair.scheduler import Admission, FillBudget, fill_shares


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


def test_requests_are_admitted_in_order_up_to_the_lanes() -> None:
    admission = queue(2, Job("a"), Job("b"), Job("c"))
    assert names(admission.admit(0)) == "ab"
    assert admission.waiting == 1
    assert names(admission.admit(2)) == ""
    assert names(admission.admit(1)) == "c"


def test_background_requests_wait_behind_foreground_requests_that_came_later() -> None:
    admission = queue(1, Job("a", True), Job("b"), Job("c", True), Job("d"))
    assert "".join(names(admission.admit(0)) for _ in range(4)) == "bdac"


def test_a_background_request_never_takes_the_last_lane() -> None:
    admission = queue(3, Job("a", True), Job("b", True), Job("c", True))
    assert names(admission.admit(0)) == "ab"
    admission.add(Job("d"))
    assert names(admission.admit(2)) == "d"


def test_a_dropped_request_is_never_admitted_and_the_order_of_the_rest_is_kept() -> None:
    jobs = [Job(name) for name in "abcd"]
    admission = queue(4, *jobs)
    assert admission.drop(jobs[1])
    assert not admission.drop(jobs[1])
    assert names(admission.admit(0)) == "acd"
    assert not admission.drop(jobs[0])


def test_an_idle_engine_wakes_when_a_request_comes() -> None:
    admission: Admission[Job] = Admission(1)
    admitted: list[Job] = []
    taker = threading.Thread(target=lambda: admitted.extend(admission.admit(0)))
    taker.start()
    admission.add(Job("a"))
    taker.join(10)
    assert names(admitted) == "a"


def test_closing_wakes_the_engine_returns_what_waited_and_refuses_more() -> None:
    admission = queue(1, Job("a"), Job("b", True))
    assert names(admission.close()) == "ab"
    assert admission.admit(0) == []
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


def test_the_portion_follows_the_budget_and_never_stops() -> None:
    budget = FillBudget(0.2, 1024)
    assert budget.rows(decoding=False) == 1024
    assert budget.rows(decoding=True) == GRID
    budget.measured(64, 0.05)
    assert budget.rows(decoding=True) == 256
    budget.measured(0, 5.0)
    assert budget.rows(decoding=True) == 256
    for _ in range(20):
        budget.measured(64, 10.0)
    assert budget.rows(decoding=True) == GRID


def test_without_a_budget_prompts_are_read_in_whole_chunks() -> None:
    assert FillBudget(0.0, 512).rows(decoding=True) == 512
