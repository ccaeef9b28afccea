# SPDX-License-Identifier: Apache-2.0
"""Notices at once when a client leaves, whatever the server is doing for it.

A stream would notice only when it next writes, which during a long prefill is never. So a task of our own
waits on `receive` from the moment the body has been read; that this works is why no middleware here may
wrap `receive`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from sparkpair.api.errors import ClientGone

T = TypeVar("T")


@contextlib.asynccontextmanager
async def watching(receive: Receive, on_gone: Callable[[], None]) -> AsyncIterator[None]:
    """Call `on_gone` if the client leaves while the block runs."""
    task = asyncio.create_task(_watch(receive, on_gone))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def attended(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` comes to, which is cancelled when the client leaves. Raises ClientGone then."""
    working = asyncio.create_task(work)
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = working.cancel()

    async with watching(receive, leave):
        try:
            return await working
        except asyncio.CancelledError:
            if gone:
                raise ClientGone from None
            working.cancel()
            raise


async def _watch(receive: Receive, on_gone: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    on_gone()
