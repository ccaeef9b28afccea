# SPDX-License-Identifier: Apache-2.0
"""Smooth streaming: bursts at an even pace, nothing lost, nothing late, and no reply longer than it was."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sparkpair.api.errors import ApiError, engine_failed
from sparkpair.api.playout import smoothed

from tests.engine.api.conftest import Serve, Server

WINDOW_S = 0.4


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def told(bursts: list[tuple[float, int]], end_s: float, error: Exception | None = None) -> list[tuple[float, Any]]:
    """When each piece is told, if bursts of so many come at those times and the reply ends at `end_s`."""
    loop = VirtualLoop()

    async def source() -> AsyncGenerator[int]:
        count = 0
        for at, size in bursts:
            await asyncio.sleep(at - loop.time())
            for _ in range(size):
                yield count
                count += 1
        await asyncio.sleep(end_s - loop.time())
        if error is not None:
            raise error

    async def play() -> list[tuple[float, Any]]:
        heard: list[tuple[float, Any]] = []
        try:
            async for piece in smoothed(source(), WINDOW_S):
                heard.append((loop.time(), piece))  # noqa: PERF401 what comes before a failure counts
        except ApiError as failure:
            heard.append((loop.time(), failure))
        heard.append((loop.time(), "end"))
        return heard

    try:
        return loop.run_until_complete(play())
    finally:
        loop.close()


STEADY = [(0.1 * burst, 4) for burst in range(40)]


def test_bursts_are_told_at_an_even_pace() -> None:
    times = [at for at, _ in told(STEADY, 4.5)][:-1]
    gaps = [after - before for before, after in itertools.pairwise(times)][30:-30]
    assert min(gaps) > 0.015
    assert max(gaps) < 0.04, "25 ms a token, where bursts would give 0 and 100"


def test_nothing_is_lost_reordered_or_later_than_the_window() -> None:
    bursts = [(0.0, 1), (0.39, 1), (0.395, 200), (1.0, 3), (1.01, 1), (3.0, 50)]
    heard = told(bursts, 4.0)
    came = [at for at, size in bursts for _ in range(size)]
    assert [piece for _, piece in heard[:-1]] == list(range(len(came)))
    for (at, _), arrived in zip(heard, came, strict=False):
        assert arrived <= at <= arrived + WINDOW_S + 1e-6


def test_first_piece_does_not_wait() -> None:
    assert told([(0.7, 8)], 2.0)[0] == (0.7, 0)


def test_reply_ends_when_it_would_have() -> None:
    heard = told([(0.0, 100)], 0.05)
    assert heard[-1] == (0.05, "end")
    assert [piece for _, piece in heard[:-1]] == list(range(100))


def test_failure_comes_after_what_was_said_and_no_later() -> None:
    failure = engine_failed("rank 1 left")
    heard = told([(0.0, 10)], 0.05, failure)
    assert heard[-2:] == [(0.05, failure), (0.05, "end")]
    assert len(heard) == 12


async def texts(server: Server) -> list[str]:
    response = await server.chat(stream=True, reasoning_effort="none")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    return [delta["content"] for delta in deltas if "content" in delta]


@pytest.mark.parametrize("smooth", [0.0, 0.05])
async def test_bursts_are_split_into_tokens_only_when_smoothing(serve: Serve, smooth: float) -> None:
    async with serve(stream_smooth_s=smooth) as server:
        server.engine.script = [server.ids("one two three four"), server.ids(" five", "<|user|>")]
        heard = await texts(server)
        assert "".join(heard) == "one two three four five"
        tokens = len(server.ids("one two three four five"))
        assert len(heard) == (tokens if smooth else 2)


async def test_client_that_leaves_while_tokens_wait_frees_the_engine(serve: Serve) -> None:
    async with serve(stream_smooth_s=5.0) as server:
        server.engine.script = [server.ids("one two three four"), "hold"]
        async with server.http.stream(
            "POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        ) as response:
            async for line in response.aiter_lines():
                if "reasoning_content" in line:
                    break
        await asyncio.wait_for(server.engine.replies[0].ended.wait(), 10)
        assert server.engine.replies[0].cancelled.is_set()
