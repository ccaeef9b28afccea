# SPDX-License-Identifier: Apache-2.0
"""A request's body: read within a limit, whether sized or chunked, and parsed as one JSON object.

A body that is too large is refused as soon as that is known. The rest of it is not kept: the HTTP server
reads it and throws it away, so that the connection stays usable. All bodies together have a limit too, or a handful of
large ones at once would take the memory that the model needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from starlette.requests import Request

from sparkpair.api.errors import ClientGone, body_too_large, invalid, too_many_bodies
from sparkpair.api.fields import Fields
from sparkpair.api.json_reader import BadJson, read_json

T = TypeVar("T")

MOST_AT_ONCE = 4
"""Bodies of the largest size that may be held at the same time, or as many bytes of smaller ones."""

OFF_LOOP_BYTES = 64 * 1024
"""Bodies from this size on are parsed and checked in a thread, so that streams go on meanwhile."""


class BodyRoom:
    """Counts the bytes of all bodies that are being read or parsed."""

    def __init__(self) -> None:
        self._held = 0

    @contextlib.contextmanager
    def share(self, limit: int) -> Iterator[Callable[[int], None]]:
        """A call that takes room for so many bytes more until the block ends; bodies may have `limit` bytes each.
        It raises ApiError 429 when there is none.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self._held + count > MOST_AT_ONCE * limit:
                raise too_many_bodies()
            self._held += count
            taken += count

        try:
            yield take
        finally:
            self._held -= taken


async def read_fields(request: Request) -> Fields:
    """The fields of the request's JSON object; an empty body has none. Raises ApiError 400, 413 or 429; ClientGone."""
    room: BodyRoom = request.app.state.serving.body_room
    limit: int = request.app.state.serving.options.max_body_bytes
    with room.share(limit) as take:
        parts = await _read(request, limit, take)
        size = sum(map(len, parts))
        values = await off_loop(size, lambda: parse_object(parts)) if parts else {}
        return Fields(values, body_bytes=size)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """What `work` makes of a body of so many bytes, in a thread if that is large: streams go on meanwhile."""
    return work() if size < OFF_LOOP_BYTES else await asyncio.to_thread(work)


async def _read(request: Request, limit: int, take: Callable[[int], None]) -> deque[bytes]:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise body_too_large(limit)
    parts: deque[bytes] = deque()
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise body_too_large(limit)
        take(len(parts[-1]))
        if not message.get("more_body", False):
            return deque(part for part in parts if part)


def parse_object(parts: deque[bytes]) -> dict[str, Any]:
    """Parse the object that these bytes are together, as `read_json` does. Raises ApiError 400."""
    try:
        value = read_json(parts)
    except BadJson as error:
        raise invalid(f"the request body {error}") from None
    if not isinstance(value, dict):
        raise invalid("the request body must be a JSON object")
    return value
