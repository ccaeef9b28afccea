# SPDX-License-Identifier: Apache-2.0
"""The supervisor's hand on another host: starts and stops that host's rank when the head's supervisor says so.

It knows three verbs (look, start, stop) and no other, and starts nothing but the last good start that is recorded on
its own host. Where the head falls silent while its rank runs, it ends that rank: half a pair serves nobody. Standard
library only; private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _autostart_files
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_keeper import Keeper, Refused
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_wire import Line

# A head that lives asks every few seconds.
_ALIVE_S = 10.0
_GREETING_S = 10.0
_BEAT_S = 1.0


class Agent:
    """The agent of this host. `config` is its config.json, with `address`, `port` and `lease_s`."""

    def __init__(self, config: Mapping[str, Any], secret: str, keeper: Keeper) -> None:
        self._config, self._secret, self._keeper = config, secret, keeper
        self._state_dir = config["state_dir"]
        self._watched = False
        self._heard = float("-inf")
        self._connections = 0
        self._told_to_stop = threading.Event()
        self._words = ""

    def run(self, end: threading.Event) -> int:
        """Serve until `end` is set. Returns the exit code."""
        server = self._listen(end)
        if server is not None:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        while not end.wait(_BEAT_S):
            self._beat()
            if _autostart_files.stopped(self._state_dir) and not self._keeper.look(False)["running"]:
                # So that a start of the unit is a start.
                self._tell(f"the rank {_autostart_files.stopped(self._state_dir)}")
                return 0
        return 0

    def _listen(self, end: threading.Event) -> socket.socket | None:
        """Return a socket that listens, as soon as this host has the address; None when the end comes first."""
        where = (self._config["address"], self._config["port"])
        while True:
            try:
                return socket.create_server(where, backlog=8)
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
                    raise
                self._tell(f"waits: {where[0]}:{where[1]} cannot be listened on yet ({error.strerror})")
            if end.wait(_BEAT_S):
                return None

    def leave(self, why: str) -> None:
        """End the rank before this host or its agent goes: with the others if the head listens, else alone."""
        self._told_to_stop.clear()
        self._keeper.leaving = why
        if self._connections and time.monotonic() - self._heard < _ALIVE_S:
            self._told_to_stop.wait(_ALIVE_S)
        failed = self._keeper.stop()
        if failed:
            self._tell(f"the rank was not stopped: {failed}")

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Do what the head asks and say what became of it."""
        self._heard = time.monotonic()
        verb = message.get("verb")
        if verb == "look":
            self._watched = bool(message.get("watch"))
            return self._keeper.look(self._watched)
        if verb == "start":
            try:
                return {"refused": "", "failed": self._keeper.start(str(message.get("pair")))}
            except Refused as refused:
                return {"refused": str(refused), "failed": ""}
        if verb == "stop":
            failed = self._keeper.stop()
            self._told_to_stop.set()
            return {"failed": failed}
        return {"failed": f"there is no verb {verb!r}"}

    def _beat(self) -> None:
        if _autostart_files.claimed(self._state_dir):
            self._watched = False
        silent_s = time.monotonic() - self._heard
        if self._watched and silent_s > self._config["lease_s"]:
            self._tell(f"stops: the head has not been heard for {silent_s:.0f} s")
            failed = self._keeper.stop()
            self._watched = bool(failed)
        elif silent_s < _ALIVE_S:
            self._tell("the head's supervisor is connected")
        elif not self._watched:
            self._tell("waits for the head's supervisor")

    def _accept(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        # A stranger, or a head that went away: the next one is served as well.
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(_GREETING_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(connection, self._secret, b"server")
            line.limit(4 * self._config["lease_s"])
            self._connections += 1
            try:
                while True:
                    line.say(self.answer(line.hear()))
            finally:
                self._connections -= 1

    def _tell(self, words: str) -> None:
        if words != self._words:
            self._words = words
            print(words, flush=True)
            with contextlib.suppress(OSError):
                _autostart_files.write(self._state_dir, "state.json", {"words": words})
