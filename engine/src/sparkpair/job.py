# SPDX-License-Identifier: Apache-2.0
"""A submitted request between the two threads: the event loop iterates its events, the engine's thread posts them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from sparkpair.request import EngineError, Event, FinishedEvent, GenerationRequest


class Job:
    """Implements request.Reply. Created on the event loop's thread."""

    def __init__(self, request: GenerationRequest, cancel: Callable[[Job], None]) -> None:
        self.request = request
        self.cancelled = False
        self.submitted = time.monotonic()
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | EngineError] = asyncio.Queue()

    @property
    def background(self) -> bool:
        """Whether this request waits behind the others."""
        return self.request.background

    def post(self, event: Event | EngineError) -> None:
        """Hand an event to the event loop; from any thread. A loop that has closed has no reader left."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:
            self.cancelled = True

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
