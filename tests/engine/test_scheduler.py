# SPDX-License-Identifier: Apache-2.0
"""Order of service: arrival, foreground first; a dropped job leaves the others' order as it was."""

from __future__ import annotations

import dataclasses
import threading

from sparkpair.scheduler import Scheduler


@dataclasses.dataclass(eq=False)
class Job:
    name: str
    background: bool = False


def names(scheduler: Scheduler[Job], count: int) -> str:
    taken = [scheduler.take() for _ in range(count)]
    return "".join(job.name for job in taken if job is not None)


def test_background_jobs_wait_behind_foreground_jobs_that_came_later() -> None:
    scheduler: Scheduler[Job] = Scheduler()
    for name, background in (("a", True), ("b", False), ("c", True), ("d", False)):
        scheduler.add(Job(name, background))
    assert scheduler.waiting == 4
    assert names(scheduler, 4) == "bdac"


def test_a_dropped_job_is_never_taken_and_the_order_of_the_rest_is_kept() -> None:
    scheduler: Scheduler[Job] = Scheduler()
    jobs = [Job(name) for name in "abcd"]
    for job in jobs:
        scheduler.add(job)
    assert scheduler.drop(jobs[1])
    assert not scheduler.drop(jobs[1])
    assert names(scheduler, 3) == "acd"
    assert not scheduler.drop(jobs[0])


def test_a_waiting_taker_wakes_when_a_job_comes() -> None:
    scheduler: Scheduler[Job] = Scheduler()
    taken: list[Job | None] = []
    taker = threading.Thread(target=lambda: taken.append(scheduler.take()))
    taker.start()
    job = Job("a")
    scheduler.add(job)
    taker.join(10)
    assert taken == [job]


def test_closing_wakes_the_taker_returns_what_waited_and_refuses_more() -> None:
    scheduler: Scheduler[Job] = Scheduler()
    taken: list[Job | None] = [Job("not yet")]
    taker = threading.Thread(target=lambda: taken.append(scheduler.take()))
    taker.start()
    assert scheduler.close() == []
    taker.join(10)
    assert taken[-1] is None
    assert not scheduler.add(Job("late"))
