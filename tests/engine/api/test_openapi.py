# SPDX-License-Identifier: Apache-2.0
"""The published document: it is true, and nothing generated from it makes the server fail."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance
from sparkpair.api import chat, completions, messages, openapi, ops, responses, tokens
from sparkpair.api.app import create_app
from sparkpair.api.keys import KeyRing
from sparkpair.api.options import ApiOptions
from sparkpair.api.server import bind, serve_sockets

from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.scripted import ScriptedEngine
from tests.engine.api.test_malformed import CHAT_FIELDS, COMPLETION_FIELDS

MODULES = (chat, completions, messages, openapi, ops, responses, tokens)
EXAMPLES = 10
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


async def test_every_route_is_published_and_no_other(server: Server) -> None:
    document = (await server.http.get("/openapi.json")).json()
    published = {
        (path.removeprefix("/v1").replace("{name}", "{name:path}"), method.upper())
        for path, methods in document["paths"].items()
        for method in methods
    }
    served = {
        (route.path, method)  # type: ignore[attr-defined]
        for module in MODULES
        for route in module.router.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    assert published == served


async def test_every_field_that_is_checked_is_published(server: Server) -> None:
    paths = (await server.http.get("/v1/openapi.json")).json()["paths"]

    def fields(path: str) -> dict[str, Any]:
        properties: dict[str, Any] = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"][
            "properties"
        ]
        return properties

    chat_fields = fields("/v1/chat/completions")
    assert {param for _, param in CHAT_FIELDS} <= set(chat_fields)
    assert {param for _, param in COMPLETION_FIELDS} <= set(fields("/v1/completions"))
    assert chat_fields["temperature"] == {"type": ["number", "null"]}
    assert chat_fields["max_tokens"] == {"type": ["integer", "null"]}
    assert chat_fields["audio"] == {"type": "null", "description": "not supported by this engine"}
    assert fields("/v1/messages")["temperature"] == {"type": ["number", "null"]}
    assert paths["/v1/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]["required"] == [
        "model", "messages", "max_tokens"
    ]  # fmt: skip
    assert "text/event-stream" in paths["/v1/responses"]["post"]["responses"]["200"]["content"]
    assert "text/event-stream" not in paths["/v1/messages/count_tokens"]["post"]["responses"]["200"]["content"]


async def test_document_says_that_a_key_is_needed_only_where_it_is(serve: Serve, server: Server) -> None:
    assert "security" not in (await server.http.get("/openapi.json")).json()
    async with serve(keys=KeyRing(["k"])) as locked:
        assert (await locked.http.get("/openapi.json")).status_code == 401
        document = (await locked.http.get("/openapi.json", headers={"x-api-key": "k"})).json()
        assert document["security"] == [{"key": []}]


@pytest.fixture(scope="module")
def url(text_directory: Path, tokenizer: Any) -> Iterator[str]:
    """A server in a thread of its own, for callers that block."""
    engine = ScriptedEngine([[token] for token in tokenizer.encode_text("Well, Oslo.")])
    sockets = bind("127.0.0.1", 0)
    loops: list[asyncio.AbstractEventLoop] = []
    stops: list[asyncio.Event] = []
    ready = threading.Event()

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        stops.append(asyncio.Event())
        app = create_app(engine, ApiOptions(model_dir=text_directory, model_name=MODEL, aliases=("*",)))
        await serve_sockets(app, sockets, on_ready=ready.set, stop=stops[0])

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(30)
    yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    loops[0].call_soon_threadsafe(stops[0].set)
    thread.join()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_nothing_generated_from_the_document_makes_the_server_fail(url: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(httpx.get(f"{url}/openapi.json").json())
    played = 0
    statuses: set[int] = set()
    for found in schema.get_all_operations():

        @given(case=found.ok().as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def holds(case: Any) -> None:
            statuses.add(case.call_and_validate(base_url=url, checks=CHECKS).status_code)

        with contextlib.suppress(Unsatisfiable):  # nothing is malformed where nothing is sent
            holds()
        played += 1
    assert played == 15
    reached = {200, 400} if mode is GenerationMode.POSITIVE else {400}
    assert reached <= statuses, "it must have come past the first check"
