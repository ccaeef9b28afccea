# SPDX-License-Identifier: Apache-2.0
"""Framed JSON messages over one TCP connection: length, checksum, text. Nothing here executes what it receives."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import zlib
from typing import Any

Message = dict[str, Any]

# A step of a whole 1M-token prompt chunk stays far below this; anything larger is not one of ours.
MAX_MESSAGE = 64 * 2**20

_HEADER = 8


class WireError(Exception):
    """The connection carried something that is not a message of ours."""


class Wire:
    """One connection. Sends are whole and may come from several threads; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._send_lock = threading.Lock()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # A peer machine that vanished without a word is noticed after about half a minute.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)

    @property
    def local_address(self) -> str:
        """Our own address on this connection."""
        return str(self._socket.getsockname()[0])

    @property
    def peer_address(self) -> str:
        """The other side's address."""
        return str(self._socket.getpeername()[0])

    def timeout(self, seconds: float | None) -> None:
        """Limit (or not) how long a receive may take."""
        self._socket.settimeout(seconds)

    def gone(self, seconds: float) -> bool:
        """Wait so long for the peer to close; whether it has. Leaves what it sent before to be received."""
        poller = select.poll()
        poller.register(self._socket, select.POLLRDHUP)
        return bool(poller.poll(seconds * 1000))

    def send(self, message: Message) -> int:
        """Send a message and return its checksum. Raises OSError when the peer is gone."""
        payload = json.dumps(message, separators=(",", ":")).encode()
        checksum = zlib.crc32(payload)
        with self._send_lock:
            self._socket.sendall(len(payload).to_bytes(4, "big") + checksum.to_bytes(4, "big") + payload)
        return checksum

    def receive(self) -> tuple[Message, int] | None:
        """The next message and its checksum; None when the peer closed. Raises WireError, OSError, TimeoutError."""
        header = self._exactly(_HEADER)
        if header is None:
            return None
        length, checksum = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")
        if length > MAX_MESSAGE:
            raise WireError(f"a message of {length} bytes")
        payload = self._exactly(length)
        if payload is None:
            return None
        if zlib.crc32(payload) != checksum:
            raise WireError("a message whose checksum is wrong")
        try:
            message = json.loads(payload)
        except ValueError:
            raise WireError("a message that is not JSON") from None
        if not isinstance(message, dict):
            raise WireError("a message that is not an object")
        return message, checksum

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(min(count - len(data), 2**20))
            if not piece:
                return None
            data += piece
        return bytes(data)

    def close(self) -> None:
        """Close both directions; a receive that waits returns None."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
