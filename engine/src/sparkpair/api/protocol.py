# SPDX-License-Identifier: Apache-2.0
"""uvicorn's HTTP/1.1 connection, corrected where real clients and hostile ones would be served badly.

Requests that are no HTTP get the API's error object; an endless header ends the connection; an offer to speak another
protocol is passed over and the request served; a client that leaves is noticed also behind requests it sent ahead. How
long a client may take is `patience.py`'s business.
"""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sparkpair.api.errors import ApiError, error_response, invalid
from sparkpair.api.patience import Patience
from sparkpair.api.sse import SHORT_CUT

MOST_PIPELINED = 8
"""Requests that may wait on one connection while an earlier reply runs and the connection is still read."""

MOST_HEAD_BYTES = 64 * 1024
"""How much of a request line and headers is read before they must be complete."""

HEAD_TOO_LARGE = f"the request's headers are larger than {MOST_HEAD_BYTES} bytes"


def _write_chunk(request: weakref.ref[RequestResponseCycle], data: bytes) -> bool:
    """Write some of a reply's body as the cycle's `send` would, where nothing has to be waited for or looked at."""
    cycle = request()
    if (
        cycle is None
        or cycle.flow.write_paused
        or cycle.disconnected
        or cycle.response_complete
        or not cycle.chunked_encoding
    ):
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True


_UPGRADE_HEADERS = frozenset({b"connection", b"upgrade", b"http2-settings"})


class Connection(HttpToolsProtocol):
    """One connection. httptools refuses what must be refused: two lengths, a length beside chunks, malformed chunks."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start with no reply running and a head to come."""
        self._earlier_cycles: list[RequestResponseCycle] = []
        self._head_bytes = 0
        self._in_head = True
        self._head_too_large = False
        self._upgrade_offered = False
        super().connection_made(transport)
        self._patience = Patience(self.loop, self.config.app.state.serving.options, self)  # type: ignore[union-attr]
        self._patience.head_begins()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            if self._head_too_large:
                self.send_400_response(HEAD_TOO_LARGE)
            else:
                self.send_400_response("the request is not valid HTTP/1.1: check its length and chunk headers")
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        else:
            if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
                self.send_400_response(HEAD_TOO_LARGE)
            elif self._in_head and self._head_bytes:
                self._patience.head_begins()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, of a head that may have come in one piece and be too large all the same."""
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + len(": \r\n")
        if self._header_bytes > MOST_HEAD_BYTES:
            self._head_too_large = True
            raise ValueError(HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A head begins, which must not take for ever."""
        self._header_bytes = 0
        super().on_message_begin()
        self._patience.head_begins()

    def on_body(self, body: bytes) -> None:
        """Some of the body; what comes after an early answer is thrown away, within limits."""
        super().on_body(body)
        self._patience.body_came(len(body), wanted=not self.cycle.response_complete)

    def _decline_upgrade(self, rest: bytes) -> None:
        """Parse the request again as one that offers nothing: the parser ends a request at the offer, before its
        body.
        """
        headers = [pair for pair in self.headers if pair[0] not in _UPGRADE_HEADERS]
        lines = [
            self.parser.get_method() + b" " + self.url + b" HTTP/1.1",
            *(k + b": " + v for k, v in headers),
            b"",
            b"",
        ]
        self._upgrade_offered = False
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + rest)

    def on_headers_complete(self) -> None:
        """Start the request, unless it has to be parsed again.

        With an earlier reply still running, uvicorn would stop reading here and so not see the client leave.
        """
        self._in_head = False
        self._upgrade_offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._upgrade_offered:
            return
        earlier = self.cycle
        super().on_headers_complete()
        # The cycle holds its scope; held back by it, every body would wait for the garbage collector.
        self.scope[SHORT_CUT] = partial(_write_chunk, weakref.ref(self.cycle))  # type: ignore[literal-required]
        self._patience.body_begins()
        if earlier is not None and not earlier.response_complete:
            self._earlier_cycles.append(earlier)
            if len(self.pipeline) <= MOST_PIPELINED:
                self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """The request's end, and the beginning of the next head."""
        self._in_head = True
        self._head_bytes = 0
        self._patience.request_is_whole()
        if not self._upgrade_offered:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer with the API's error object and close; close alone if a reply has begun."""
        self.refuse(invalid(msg))

    def is_late(self) -> None:
        """Refuse a request that does not come to its end; there is no answer to one that has not begun, or has one."""
        cycle = self.cycle
        if (self._in_head and not self._head_bytes) or (not self._in_head and cycle and cycle.response_complete):
            self.transport.close()
        else:
            self.refuse(ApiError(HTTPStatus.REQUEST_TIMEOUT, "the request did not come to its end in time"))

    def refuse(self, error: ApiError) -> None:
        """Answer with an error and close; close alone if a reply has begun."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            known = self.scope is not None and "path" in self.scope
            response = error_response(error, dict(self.scope) if known else None)
            headers = [*response.raw_headers, (b"connection", b"close")]
            status = b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode())
            lines = [status, *(name + b": " + value for name, value in headers), b"", b""]
            self.transport.write(b"\r\n".join(lines) + bytes(response.body))
        self.transport.close()

    def on_response_complete(self) -> None:
        """The reply is written, though perhaps not read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._patience.reader_stalls()

    def timeout_keep_alive_handler(self) -> None:
        """An idle connection ends, at once if its client has stopped to read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        super().pause_writing()
        self._patience.reader_stalls()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._patience.reader_goes_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every reply of this connection that the client is gone, not only the latest."""
        self._patience.end()
        for cycle in self._earlier_cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)
