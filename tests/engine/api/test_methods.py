# SPDX-License-Identifier: Apache-2.0
"""HEAD and OPTIONS on every route, and pages of other origins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.api.conftest import Serve, Server
from tests.engine.api.raw import read_answer, request

PAGE = "https://page.example"
READ = ["/v1/models", "/health", "/metrics"]
WRITE = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/detokenize"]


@pytest.mark.parametrize("path", READ + WRITE)
async def test_options_names_the_methods_of_a_route(server: Server, path: str) -> None:
    response = await server.http.options(path)
    expected = "GET, HEAD, OPTIONS" if path in READ else "POST, OPTIONS"
    assert (response.status_code, response.headers["allow"], response.content) == (204, expected, b"")
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", READ)
async def test_head_is_get_without_the_body(server: Server, path: str) -> None:
    head, get = await server.http.head(path), await server.http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", WRITE)
async def test_head_of_a_route_that_is_posted_to_says_so_and_leaves_the_connection_usable(
    server: Server, path: str
) -> None:
    reader, writer = await server.connect()
    writer.write(request(path, method="HEAD") + request("/health", method="GET"))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert b"\r\nallow: POST, OPTIONS\r\n" in head.lower().replace(b"post, options", b"POST, OPTIONS")
    assert (await read_answer(reader)).json()["ok"] is True
    writer.close()


async def test_options_of_an_unknown_route_is_404(server: Server) -> None:
    assert (await server.http.options("/v1/none")).json()["error"]["code"] == "unknown_url"


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin, "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }  # fmt: skip


async def test_pages_of_other_origins_may_read_nothing_unless_named(server: Server, serve: Serve) -> None:
    async with serve(cors_origins=(PAGE,)) as named:
        for running, origin in ((server, PAGE), (named, "https://page.example.evil"), (named, "null")):
            for response in (
                await running.http.options("/v1/chat/completions", headers=preflight(origin)),
                await running.http.get("/v1/models", headers={"origin": origin}),
            ):
                assert not [name for name in response.headers if name.startswith("access-control")]


async def test_pages_of_a_named_origin_may_read_every_reply(serve: Serve) -> None:
    async with serve(cors_origins=(PAGE + "/", "https://other.example")) as server:
        asked = await server.http.options("/v1/chat/completions", headers=preflight(PAGE))
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == PAGE
        assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in asked.headers["access-control-allow-methods"]
        server.says("</think>", "Yes.", "<|user|>")
        stream: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        for body in (stream, {"messages": 5}):
            response = await server.http.post(
                "/v1/chat/completions", content=json.dumps(body), headers={"origin": PAGE}
            )
            assert response.headers["access-control-allow-origin"] == PAGE
            assert response.headers["vary"] == "origin"
            assert "x-request-id" in response.headers["access-control-expose-headers"]
        missing = await server.http.get("/none", headers={"origin": PAGE})
        assert missing.headers["access-control-allow-origin"] == PAGE


async def test_any_origin_can_be_allowed(serve: Serve) -> None:
    async with serve(cors_origins=("*",)) as server:
        response = await server.http.get("/v1/models", headers={"origin": PAGE})
        assert response.headers["access-control-allow-origin"] == "*"
