# SPDX-License-Identifier: Apache-2.0
"""Runs the application on a port, inside the caller's event loop, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from sparkpair.api.protocol import Connection
from sparkpair.api.serving import Serving
from sparkpair.errors import UserError

GRACE_S = 5
"""How long connections may take to end once the server stops."""

KEEP_ALIVE_S = 75
"""How long an idle connection is kept, longer than the pools of common clients keep theirs: who closes first never
sends a request into a connection that is being closed."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which are the caller's business, and with a call once it accepts
    connections.
    """

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening addresses for a host name; port 0 takes a free one. Raises UserError when that is
    impossible.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UserError(
            f"--host {host}: no such address ({error.strerror}); name one of this machine's addresses"
        ) from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sockets.append(_bind_one(socket.socket(family, kind, protocol), address))
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise UserError(_bind_failure(host, port, error)) from None
    return sockets


def _bind_one(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen()
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_failure(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port}: something else on this machine listens on {host}:{port}; stop it or choose another port"
    if error.errno == errno.EACCES:
        return f"--port {port}: not allowed to listen on {host}:{port}; choose a port from 1024 up"
    return f"--host {host} --port {port}: cannot listen there ({error.strerror})"


async def serve_http(app: FastAPI, host: str, port: int, *, on_ready: Callable[[], None], stop: asyncio.Event) -> None:
    """Serve until `stop` is set. `on_ready` is called when connections are accepted. Raises UserError if
    the port is taken.

    Once stopped, running replies are cancelled and told so in their last event; connections then have a few
    seconds to end.
    """
    await serve_sockets(app, bind(host, port), on_ready=on_ready, stop=stop)


async def serve_sockets(
    app: FastAPI, sockets: list[socket.socket], *, on_ready: Callable[[], None], stop: asyncio.Event
) -> None:
    """`serve_http` on sockets that are bound already; they are closed in the end."""
    serving: Serving = app.state.serving
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = _Server(config, on_ready)
    running = asyncio.create_task(server.serve(sockets))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        serving.shut_down()
        server.should_exit = True
        await running
    finally:
        stopped.cancel()
        for sock in sockets:
            sock.close()
