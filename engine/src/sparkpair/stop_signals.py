# SPDX-License-Identifier: Apache-2.0
"""Being asked to stop: SIGTERM and SIGINT as a call, whatever the main thread is in."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable


class Signals:
    """SIGTERM and SIGINT as a call: before serving they end the process cleanly, while serving they stop the server.

    A thread of its own reacts, because the main thread may be inside a tensor exchange in which Python runs no signal
    handlers. It learns of a signal through the wake-up descriptor, which works whatever thread the system picks.
    """

    def __init__(self) -> None:
        self.on_stop: Callable[[], None] = lambda: os._exit(0)
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        self._sender = sender
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._wait, args=(receiver,), name="signals", daemon=True).start()

    def _wait(self, receiver: socket.socket) -> None:
        while receiver.recv(1):
            self.on_stop()
