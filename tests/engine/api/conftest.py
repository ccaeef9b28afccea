# SPDX-License-Identifier: Apache-2.0
"""A real server on a real socket, with a scripted engine behind it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sparkpair.api.app import create_app
from sparkpair.api.options import ApiOptions
from sparkpair.api.server import bind, serve_sockets
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.chat.tokenizer import TextTokenizer

from tests.engine.api.scripted import Script, ScriptedEngine

MODEL = "GLM-5.3-Flash"


@dataclasses.dataclass
class Server:
    """A running server and the clients that talk to it."""

    engine: ScriptedEngine
    tokenizer: TextTokenizer
    port: int
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    stop: asyncio.Event
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ids(self, *parts: str | int) -> list[int]:
        """Token ids of a text in which marker names given as arguments of their own are markers."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            elif part in self.tokenizer.marker_ids:
                ids.append(self.tokenizer.marker_ids[part])
            else:
                ids += self.tokenizer.encode_text(part)
        return ids

    def says(self, *parts: str | int) -> None:
        """Have the next replies say this, one token an event."""
        self.engine.script = [[token_id] for token_id in self.ids(*parts)]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def chat(self, **fields: Any) -> httpx.Response:
        """One chat request."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)


Serve = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture(scope="session")
def serve(text_directory: Path, tokenizer: TextTokenizer) -> Serve:
    """Start a server with a scripted engine; keyword arguments are the script, engine fields and API
    options.
    """
    # Hundreds of servers and clients are made: the checkpoint is read once, and nobody loads certificates for HTTP.
    text = CheckpointText.load(text_directory)

    @contextlib.asynccontextmanager
    async def run(
        script: Script = (), *, engine: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Server]:
        scripted = ScriptedEngine(script, **(engine or {}))
        app = create_app(scripted, ApiOptions(**{"model_dir": text_directory, "model_name": MODEL, **options}), text)
        sockets = bind("127.0.0.1", 0)
        port: int = sockets[0].getsockname()[1]
        ready, stop = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(serve_sockets(app, sockets, on_ready=ready.set, stop=stop))
        await ready.wait()
        url = f"http://127.0.0.1:{port}"
        try:
            async with (
                httpx.AsyncClient(base_url=url, timeout=20, verify=False) as http,
                openai.DefaultAsyncHttpxClient(verify=False) as own,
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=own) as client,
            ):
                yield Server(scripted, tokenizer, port, http, client, stop, task)
        finally:
            stop.set()
            await task

    return run


@pytest.fixture
async def server(serve: Serve) -> AsyncIterator[Server]:
    """A server with the default options."""
    async with serve() as running:
        yield running
