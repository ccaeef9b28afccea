# SPDX-License-Identifier: Apache-2.0
"""uvicorn's HTTP/1.1 connection, with our words for a request that is not HTTP and a sharper eye for
leaving clients.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sparkpair.api.errors import error_response, invalid

MOST_PIPELINED = 8
"""Requests that may wait on one connection while an earlier reply runs and the connection is still read."""


class Connection(HttpToolsProtocol):
    """One connection. httptools refuses what must be refused: two lengths, a length beside chunks,
    malformed chunks.
    """

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request with the API's error object and close; close alone if a reply has
        begun.
        """
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            response = error_response(invalid("the request is not valid HTTP/1.1: check its length and chunk headers"))
            headers = [*response.raw_headers, (b"connection", b"close")]
            lines = [b"HTTP/1.1 400 Bad Request", *(name + b": " + value for name, value in headers), b"", b""]
            self.transport.write(b"\r\n".join(lines) + bytes(response.body))
        self.transport.close()

    def on_headers_complete(self) -> None:
        """Remember a reply that still runs when the client's next request is already here.

        uvicorn would stop reading then, and so not see the client leave.
        """
        earlier = self.cycle
        super().on_headers_complete()
        if earlier is not None and not earlier.response_complete:
            self._earlier_cycles.append(earlier)
            if len(self.pipeline) <= MOST_PIPELINED:
                self.flow.resume_reading()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start with no reply running."""
        self._earlier_cycles: list[RequestResponseCycle] = []
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every reply of this connection that the client is gone, not only the latest."""
        for cycle in self._earlier_cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)
