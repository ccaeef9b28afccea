# SPDX-License-Identifier: Apache-2.0
"""How long one connection's client may take: for a request's head, for its body, and to read a reply.

Without this a few clients that do nothing, slowly, would hold connections, memory and lanes for as long as they like.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from sparkpair.api.options import ApiOptions


class Held(Protocol):
    """The connection as far as it concerns this."""

    flow: FlowControl
    transport: asyncio.Transport

    def is_late(self) -> None:
        """Refuse the request that does not come to its end."""


class Patience:
    """The clocks of one connection. Told of what happens, it ends what takes too long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, options: ApiOptions, connection: Held) -> None:
        self._loop = loop
        self._options = options
        self._connection = connection
        self._request: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None
        self._came = 0
        self._thrown_away = 0

    def head_begins(self) -> None:
        """Bytes of a head came, or are to come; its time runs from the first of them."""
        if self._request is None:
            self._request = self._loop.call_later(self._options.head_timeout_s, self._late)

    def body_begins(self) -> None:
        """The head is whole."""
        self._came = self._thrown_away = 0
        self._expect_body()

    def body_came(self, count: int, *, wanted: bool) -> None:
        """So many bytes of the body. Not `wanted`: the request was answered without them."""
        self._came += count
        if not wanted:
            self._thrown_away += count
            if self._thrown_away > 2 * self._options.max_body_bytes:
                self._connection.transport.abort()

    def request_is_whole(self) -> None:
        """The client has done its part."""
        self._stop_request()

    def reader_stalls(self) -> None:
        """As much is waiting for the client as may, or the last of it."""
        if self._reader is None:
            self._reader = self._loop.call_later(self._options.reader_timeout_s, self._connection.transport.abort)

    def reader_goes_on(self) -> None:
        """The client reads."""
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def end(self) -> None:
        """The connection is gone."""
        self._stop_request()
        self.reader_goes_on()

    def _stop_request(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def _expect_body(self) -> None:
        self._stop_request()
        self._request = self._loop.call_later(self._options.body_timeout_s, self._look_at_body)

    def _look_at_body(self) -> None:
        """A body must go on at a rate, unless we are the ones who do not read it."""
        self._request = None
        if self._connection.flow.read_paused or self._came >= self._options.body_rate:
            self._came = 0
            self._expect_body()
        else:
            self._late()

    def _late(self) -> None:
        self._request = None
        if not self._connection.transport.is_closing():
            self._connection.is_late()
