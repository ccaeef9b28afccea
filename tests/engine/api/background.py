# SPDX-License-Identifier: Apache-2.0
"""A server with a scripted engine in a thread of its own, for clients that block and tests that run many examples."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from sparkpair.api.app import create_app
from sparkpair.api.options import ApiOptions
from sparkpair.api.server import bind, serve_sockets

from tests.engine.api.scripted import ScriptedEngine


class Background:
    """A server in a thread of its own, for tests that run many examples."""

    def __init__(self, directory: Path, engine: ScriptedEngine | None = None, **options: Any) -> None:
        self.engine = engine or ScriptedEngine()
        self.port = 0
        self._ready = threading.Event()
        self._options = ApiOptions(**{"model_dir": directory, "model_name": "m", **options})
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        self._ready.wait()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = create_app(self.engine, self._options)
        sockets = bind("127.0.0.1", 0)
        self.port = sockets[0].getsockname()[1]
        await serve_sockets(app, sockets, on_ready=self._ready.set, stop=self._stop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
