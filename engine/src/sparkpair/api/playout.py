# SPDX-License-Identifier: Apache-2.0
"""Smooth streaming: tokens that come in bursts are told one by one, at an even pace.

Off by default. No piece waits longer than the window, the first does not wait at all, and when the reply has ended
everything that is left goes out at once, so that a reply ends when it would have.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Generic, TypeVar

from sparkpair.request import Event, FinishedEvent, Reply, TokensEvent

Piece = TypeVar("Piece")


class SingleTokens:
    """A reply whose events have one token each. See request.Reply."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def events(self) -> AsyncIterator[Event]:
        """The same tokens, one an event."""
        async for event in self._reply.events():
            if isinstance(event, FinishedEvent):
                yield event
            else:
                for token_id in event.token_ids:
                    yield TokensEvent((token_id,))

    def cancel(self) -> None:
        """See request.Reply."""
        self._reply.cancel()


class _Playout(Generic[Piece]):
    """What has come and was not told yet, with the time at which each has to be told at the latest."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._clock = asyncio.get_running_loop().time
        self._waiting: deque[tuple[float, Piece]] = deque()
        self._due = 0.0
        self._ended = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    async def fill(self, pieces: AsyncGenerator[Piece]) -> None:
        """Take pieces as they come, to their end or failure."""
        try:
            async for piece in pieces:
                self._waiting.append((self._clock() + self._window_s, piece))
                self._news.set()
        except Exception as error:
            self._error = error
        self._ended = True
        self._news.set()

    async def play(self) -> AsyncGenerator[Piece]:
        """Give pieces when it is their time."""
        while True:
            rest = self._due - self._clock()
            if self._waiting and (self._ended or rest <= 0):
                _, piece = self._waiting.popleft()
                yield piece
                self._plan()
            elif self._waiting:
                await self._ended_within(rest)
            elif not self._ended:
                self._news.clear()
                await self._news.wait()
            elif self._error is not None:
                raise self._error
            else:
                return

    def _plan(self) -> None:
        """Spread what waits evenly up to the time of its last piece, and no piece beyond its own time."""
        now = self._clock()
        self._due = now
        if self._waiting:
            self._due = min(now + (self._waiting[-1][0] - now) / len(self._waiting), self._waiting[0][0])

    async def _ended_within(self, seconds: float) -> None:
        """Return after that time, or as soon as the reply has ended; more pieces change nothing."""
        loop = asyncio.get_running_loop()
        handle = loop.call_later(seconds, self._news.set)
        try:
            self._news.clear()
            while not self._ended and loop.time() < self._due:
                await self._news.wait()
                self._news.clear()
        finally:
            handle.cancel()


async def smoothed(pieces: AsyncGenerator[Piece], window_s: float) -> AsyncGenerator[Piece]:
    """The same pieces at an even pace, each at most `window_s` later. Closes `pieces`; raises what they raise."""
    playout: _Playout[Piece] = _Playout(window_s)
    filling = asyncio.create_task(playout.fill(pieces))
    try:
        async for piece in playout.play():
            yield piece
    finally:
        filling.cancel()
        await asyncio.wait([filling])
        await pieces.aclose()
