# SPDX-License-Identifier: Apache-2.0
"""A submitted request between the two threads: the event loop iterates its events, the engine's thread posts them."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import AsyncIterator, Callable

from sparkpair.request import EngineError, Event, FinishedEvent, GenerationRequest


class Outbox:
    """Hands over what the engine's thread posts. The loop is woken once for all that comes before it gets to it, as a
    step posts to every stream at about the same time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._posted: collections.deque[tuple[Job, Event | EngineError]] = collections.deque()
        self._woken = False

    def post(self, job: Job, event: Event | EngineError) -> None:
        """Hand over an event; from any thread. A loop that has closed has no reader left."""
        self._posted.append((job, event))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            self._woken = False
            self._posted.clear()
            job.cancelled = True

    def _deliver(self) -> None:
        # First, so that what is posted from now on is either taken below or wakes the loop again.
        self._woken = False
        while self._posted:
            job, event = self._posted.popleft()
            job.take(event)


class Job:
    """Implements request.Reply. Created on the event loop's thread."""

    def __init__(self, request: GenerationRequest, cancel: Callable[[Job], None], outbox: Outbox) -> None:
        self.request = request
        self.cancelled = False
        self.submitted = time.monotonic()
        self._cancel = cancel
        self._outbox = outbox
        self._queue: asyncio.Queue[Event | EngineError] = asyncio.Queue()

    @property
    def background(self) -> bool:
        """Whether this request waits behind the others."""
        return self.request.background

    def post(self, event: Event | EngineError) -> None:
        """Hand an event to the event loop; from any thread."""
        self._outbox.post(self, event)

    def take(self, event: Event | EngineError) -> None:
        """An event has arrived on the event loop's thread."""
        self._queue.put_nowait(event)

    async def events(self) -> AsyncIterator[Event]:
        """See request.Reply."""
        while True:
            event = await self._queue.get()
            if isinstance(event, EngineError):
                raise event
            yield event
            if isinstance(event, FinishedEvent):
                return

    def cancel(self) -> None:
        """See request.Reply."""
        self._cancel(self)
