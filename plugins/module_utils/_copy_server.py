# SPDX-License-Identifier: Apache-2.0
"""Offers the files of snapshots to the other hosts of the pair, on one address of the link and for one run.

A client proves that it knows the run's secret, and the server too, before a file is named; then it asks for files one
after the other, each from an offset on. Only the offered files are sent, past the page cache. Private to the
collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._job import Report

GREETING = b"sparkpair-weights-1\n"
NONCE = 32
LIMIT_S = 60.0
_MOST_LINE = 8192
_WINDOW = 64 << 20


def proof(secret: str, side: bytes, mine: bytes, theirs: bytes) -> bytes:
    """Return what shows the knowledge of the secret to the other side, for one connection only."""
    return hmac.new(secret.encode(), side + mine + theirs, "sha256").digest()


def exactly(connection: socket.socket, count: int) -> bytes:
    """Read so many bytes. Raises ConnectionError when the connection ends before."""
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return data


def read_line(connection: socket.socket) -> dict[str, Any]:
    """Read one line of JSON, byte by byte so that nothing of what follows is taken. Raises ConnectionError."""
    data = b""
    while not data.endswith(b"\n"):
        data += exactly(connection, 1)
        if len(data) > _MOST_LINE:
            raise ConnectionError("the line is too long")
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError) as error:
        raise ConnectionError("the line is not what was agreed on") from error


def send_line(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


class Offer:
    """Files by repository and path, offered at an address until nobody has asked for `idle_s` seconds."""

    def __init__(self, address: str, secret: str, files: Mapping[tuple[str, str], str], idle_s: float) -> None:
        self._secret = secret
        self._files = files
        self._idle_s = idle_s
        self._server = socket.create_server((address, 0), backlog=64)
        self.port = int(self._server.getsockname()[1])
        self.descriptor = self._server.fileno()
        self._busy = 0
        self._lock = threading.Lock()

    def serve(self, report: Report) -> dict[str, Any]:
        """Serve until nobody asks any more, and return how many `connections` there were."""
        report({"doing": "offering", "port": self.port})
        count = 0
        self._server.settimeout(self._idle_s)
        with self._server:
            while True:
                try:
                    connection, _ = self._server.accept()
                except socket.timeout:
                    with self._lock:
                        if not self._busy:
                            return {"connections": count}
                    continue
                count += 1
                with self._lock:
                    self._busy += 1
                threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(LIMIT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._greet(connection):
                    self._talk(connection)
        finally:
            with self._lock:
                self._busy -= 1

    def _talk(self, connection: socket.socket) -> None:
        """Answer one request after the other until the client is gone."""
        sent = ""
        try:
            while True:
                asked = read_line(connection)
                let_go(sent)
                sent = self._answer(connection, asked)
        finally:
            let_go(sent)

    def _greet(self, connection: socket.socket) -> bool:
        mine = secrets.token_bytes(NONCE)
        connection.sendall(GREETING + mine)
        theirs = exactly(connection, NONCE)
        given = exactly(connection, NONCE)
        if not hmac.compare_digest(given, proof(self._secret, b"client", theirs, mine)):
            return False
        connection.sendall(proof(self._secret, b"server", mine, theirs))
        return True

    def _answer(self, connection: socket.socket, asked: Mapping[str, Any]) -> str:
        """Send a file, or why not, and return its path."""
        path = self._files.get((str(asked.get("repo")), str(asked.get("path"))))
        if path is None:
            send_line(connection, {"error": "it is not offered"})
            return ""
        try:
            opened = os.open(path, os.O_RDONLY)
        except OSError as error:
            send_line(connection, {"error": str(error.strerror)})
            return ""
        with open(opened, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            at = min(max(0, int(asked.get("offset", 0))), size)
            send_line(connection, {"size": size})
            os.posix_fadvise(file.fileno(), at, 0, os.POSIX_FADV_SEQUENTIAL)
            dropped = at
            while at < size:
                sent = connection.sendfile(file, at, min(_WINDOW, size - at))
                if not sent:
                    # The file has become shorter; the other side sees the end and says which file it was.
                    raise ConnectionError("the file has changed")
                at += sent
                # What was sent last may still be on its way out of these very pages.
                if at - dropped > 2 * _WINDOW:
                    os.posix_fadvise(file.fileno(), dropped, at - _WINDOW - dropped, os.POSIX_FADV_DONTNEED)
                    dropped = at - _WINDOW
        return path


def let_go(path: str) -> None:
    """Take a file out of the page cache, of which the last part was on its way when it was sent."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
