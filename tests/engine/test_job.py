# SPDX-License-Identifier: Apache-2.0
"""What the engine's thread posts arrives at the event loop: everything, in order, with one wake-up for many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sparkpair.job import Job, Outbox
from sparkpair.request import FinishedEvent, GenerationRequest, ReplyStats, TokensEvent

NOTHING = ReplyStats(1, 0, 0, 0.0, 0.0, 0.0, ())


async def test_the_loop_is_woken_once_for_all_that_is_posted_before_it_gets_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    wake, woken = loop.call_soon_threadsafe, 0

    def counted(call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal woken
        woken += 1
        return wake(call, *arguments)

    outbox = Outbox(loop)
    jobs = [Job(GenerationRequest((1,), 9), lambda _: None, outbox) for _ in range(4)]

    def step() -> None:
        for job in jobs:
            job.post(TokensEvent((7,)))
            job.post(FinishedEvent("stop", NOTHING))

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()  # the loop stands still meanwhile, as in a burst
    monkeypatch.undo()
    assert woken == 1
    for job in jobs:
        assert [event async for event in job.events()] == [TokensEvent((7,)), FinishedEvent("stop", NOTHING)]


async def test_nothing_posted_while_the_loop_takes_what_came_before_is_left_lying() -> None:
    job = Job(GenerationRequest((1,), 9), lambda _: None, Outbox(asyncio.get_running_loop()))
    count = 2000

    def run() -> None:
        for token in range(count):
            job.post(TokensEvent((token,)))
        job.post(FinishedEvent("stop", NOTHING))

    thread = threading.Thread(target=run)
    thread.start()
    async with asyncio.timeout(20):
        came = [event async for event in job.events()]
    thread.join()
    assert [event.token_ids[0] for event in came if isinstance(event, TokensEvent)] == list(range(count))


async def test_a_job_whose_loop_has_closed_is_cancelled_instead() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    outbox = Outbox(loop)
    jobs = [Job(GenerationRequest((1,), 9), lambda _: None, outbox) for _ in range(2)]
    for job in jobs:
        job.post(TokensEvent((1,)))
    assert [job.cancelled for job in jobs] == [True, True]
