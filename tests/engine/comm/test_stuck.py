# SPDX-License-Identifier: Apache-2.0
"""A step that takes too long shows where its threads are, once, and the ranks to look at are named."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from sparkpair.comm.stuck import Running, StepWatch, describe_stuck

NAMES = {0: "rank 0", 1: "rank 1 on b", 2: "rank 2 on c"}


def blocked_in_a_step(started: threading.Event, release: threading.Event) -> None:
    started.set()
    release.wait()


def test_o10_a_step_beyond_the_limit_is_reported_once_with_the_stack_of_the_thread_that_is_in_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    steps: list[Running | None] = [None]
    reported: queue.Queue[int] = queue.Queue()
    started, release = threading.Event(), threading.Event()
    engine = threading.Thread(target=blocked_in_a_step, args=(started, release))
    engine.start()
    started.wait()
    StepWatch(3, 0.05, lambda: steps[0], reported.put).start()
    steps[0] = (7, time.monotonic())
    assert reported.get(timeout=20) == 7
    # The first one, however long it goes on, is not reported again: the next report is of another step.
    steps[0] = (8, time.monotonic())
    assert reported.get(timeout=20) == 8
    steps[0] = None
    release.set()
    engine.join()
    log = capfd.readouterr().err
    assert log.count("stuck: rank 3 has been in step 7 for 0.") == 1
    assert "blocked_in_a_step" in log
    assert reported.empty()


def test_steps_within_the_limit_are_not_reported() -> None:
    asked = threading.Semaphore(0)
    reported: list[int] = []
    numbers = iter(range(1, 10**6))

    def running() -> Running:
        asked.release()
        return next(numbers), time.monotonic() - 0.5

    StepWatch(0, 1.0, running, reported.append).start()
    for _ in range(4):
        assert asked.acquire(timeout=20)
    assert reported == []


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ({0: True, 2: True}, "rank 1 on b does not answer"),
        ({0: True}, "rank 1 on b and rank 2 on c do not answer"),
        ({0: True, 1: False, 2: True}, "rank 1 on b waits for no other rank"),
        ({0: False, 1: True, 2: False}, "rank 0 and rank 2 on c wait for no other rank"),
        ({0: True, 1: True, 2: True}, "rank 0 and rank 1 on b and rank 2 on c wait for each other"),
    ],
)
def test_the_rank_to_look_at_is_the_silent_one_or_the_one_that_does_not_wait(
    reports: dict[int, bool], expected: str
) -> None:
    assert describe_stuck(NAMES, reports) == expected
