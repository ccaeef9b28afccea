# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: how one is written, and how a stream is kept alive while there is nothing to say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.types import Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    # Some proxies collect a reply before they pass it on, unless told not to.
    (b"x-accel-buffering", b"no"),
]
COMMENT = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"


def encode_event(data: str, name: str | None = None) -> bytes:
    """One event; `data` of several lines becomes several data lines, as the format asks."""
    lines = [] if name is None else [f"event: {name}"]
    lines += [f"data: {line}" for line in data.split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


SHORT_CUT = "sparkpair.short_cut"
"""Scope entry: a call that writes some of a reply's body right to its connection, past everything that only looks at
how a reply begins. It returns False, and has written nothing, where only `send` will do.
"""


class EventWriter:
    """Writes the body of one event stream."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        self._short_cut: Callable[[bytes], bool] | None = scope.get(SHORT_CUT)
        self._clock = asyncio.get_running_loop().time
        self._last = self._clock()

    async def start(self) -> None:
        """Send status and headers."""
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})

    async def write(self, data: bytes) -> None:
        """Send whole events."""
        self._last = self._clock()
        if self._short_cut is None or not self._short_cut(data):
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Send the end of the body."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    @contextlib.asynccontextmanager
    async def every(self, interval_s: float, say: Callable[[], bytes]) -> AsyncIterator[None]:
        """Write what `say` returns whenever nothing has been written for so long; 0 never does."""
        task = asyncio.create_task(self._repeat(interval_s, say)) if interval_s > 0 else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    async def _repeat(self, interval_s: float, say: Callable[[], bytes]) -> None:
        due = self._last + interval_s
        while True:
            await asyncio.sleep(max(due - self._clock(), 0))
            due = max(self._last + interval_s, due)
            if self._clock() >= due:
                if data := say():
                    await self.write(data)
                due = self._clock() + interval_s
