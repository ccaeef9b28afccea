# SPDX-License-Identifier: Apache-2.0
"""How the head's supervisor talks to the agents of the other ranks: lines of JSON over TCP that both sides prove.

Both know a secret of the pair. Each greets with a fresh number; from the two comes the key of this connection, and
every line carries its number and its proof under that key, so that nobody else on the network can say, change or
repeat one. What is said is no secret: verbs and states. Standard library only; private to the collection, may change
at any time.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_keeper import Refused

GREETING = b"sparkpair-pair-1\n"
_NONCE = 32
_MOST_LINE = 65536


class WireError(ConnectionError):
    """The other side does not answer, or is not who it should be. The text is for a person."""


class Line:
    """One proven connection. The head says `client`, the agent `server`."""

    def __init__(self, connection: socket.socket, secret: str, side: bytes) -> None:
        """Greet, and prove both sides. Raises WireError and OSError."""
        self._connection = connection
        self._file = connection.makefile("rb")
        self._side, self._other = (side, b"server") if side == b"client" else (side, b"client")
        self._said = self._heard = 0
        self._key = b""
        try:
            self._greet(secret)
        except BaseException:
            self._file.close()
            raise

    def _greet(self, secret: str) -> None:
        mine = secrets.token_bytes(_NONCE)
        self._connection.sendall(GREETING + mine)
        greeting = self._exactly(len(GREETING) + _NONCE)
        if not greeting.startswith(GREETING):
            raise WireError("something else than a supervisor of this version answers")
        theirs = greeting[len(GREETING) :]
        numbers = mine + theirs if self._side == b"client" else theirs + mine
        self._key = hmac.new(secret.encode(), b"sparkpair-pair-key" + numbers, "sha256").digest()
        # Before anything is asked or done, so that a stranger learns nothing but that he is refused.
        self.say({"hello": self._side.decode()})
        self.hear()

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises OSError."""
        text = json.dumps(message, separators=(",", ":"))
        proof = self._proof(self._side, self._said, text)
        self._said += 1
        self._connection.sendall(f"{proof} {text}\n".encode())

    def hear(self) -> dict[str, Any]:
        """Return the next message. Raises WireError and OSError."""
        line = self._file.readline(_MOST_LINE)
        if not line.endswith(b"\n"):
            raise WireError("the connection was closed")
        proof, _, text = line[:-1].decode("utf-8", errors="replace").partition(" ")
        if not hmac.compare_digest(proof.encode(), self._proof(self._other, self._heard, text).encode()):
            raise WireError("the other side does not know the secret of this pair")
        self._heard += 1
        message = json.loads(text)
        if not isinstance(message, dict):
            raise WireError("the message is not what was agreed on")
        return message

    def limit(self, seconds: float) -> None:
        """Have everything that follows answered within so many seconds."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._file.close()
            self._connection.close()

    def _proof(self, side: bytes, number: int, text: str) -> str:
        return hmac.new(self._key, side + b"%d " % number + text.encode(), "sha256").hexdigest()

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise WireError("the connection was closed")
        return bytes(data)


def connect(address: str, port: int, secret: str, limit_s: float) -> Line:
    """Connect to an agent and prove both sides. Raises WireError and OSError."""
    connection = socket.create_connection((address, port), timeout=limit_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Line(connection, secret, b"client")
    except BaseException:
        connection.close()
        raise


class Remote:
    """The rank of another host, asked over its agent: the same words as a `Keeper` of this host has."""

    def __init__(self, address: str, port: int, secret: str, look_s: float, stop_s: float) -> None:
        """`look_s` and `stop_s` are the seconds that a look and a stop may take."""
        self._where, self._secret, self._look_s, self._stop_s = (address, port), secret, look_s, stop_s
        self._line: Line | None = None

    def look(self, watch: bool) -> dict[str, Any]:
        """Return what the agent sees of its rank; `watch` makes it answer for it. Raises OSError."""
        return self._ask({"verb": "look", "watch": watch}, self._look_s)

    def start(self, pair: str) -> str:
        """Have the recorded start of that pair made; return why it failed. Raises Refused and OSError."""
        answer = self._ask({"verb": "start", "pair": pair}, 300.0)
        if answer["refused"]:
            raise Refused(answer["refused"])
        return str(answer["failed"])

    def stop(self) -> str:
        """Have the rank stopped and its log saved; return what went wrong, empty when nothing did. Raises OSError."""
        return str(self._ask({"verb": "stop"}, self._stop_s)["failed"])

    def _ask(self, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        try:
            if self._line is None:
                self._line = connect(*self._where, self._secret, self._look_s)
            self._line.limit(limit_s)
            self._line.say(message)
            return self._line.hear()
        except (OSError, ValueError, KeyError) as error:
            if self._line is not None:
                self._line.close()
                self._line = None
            if isinstance(error, OSError):
                raise
            raise WireError(f"the agent's answer makes no sense: {error}") from error
