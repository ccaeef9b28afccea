# SPDX-License-Identifier: Apache-2.0
"""A client that leaves frees the engine at once: before the first token, between tokens, streamed or not."""

from __future__ import annotations

import asyncio
import resource

import pytest

from tests.engine.api.conftest import Server
from tests.engine.api.raw import chat_body, read_head, request
from tests.engine.api.scripted import HOLD, ScriptedReply

SOON_S = 10

both = pytest.mark.parametrize("stream", [False, True], ids=["unstreamed", "streamed"])


async def freed(reply: ScriptedReply) -> None:
    """Wait until the engine has been told and the reply has ended."""
    await asyncio.wait_for(reply.cancelled.wait(), SOON_S)
    await asyncio.wait_for(reply.ended.wait(), SOON_S)


@both
async def test_client_that_leaves_before_the_first_token(server: Server, stream: bool) -> None:
    server.engine.script = [HOLD, [1]]
    _, writer = await server.connect()
    writer.write(request(body=chat_body(stream=stream)))
    reply = await server.engine.submitted()
    await reply.started.wait()
    writer.close()
    await freed(reply)
    metrics = (await server.http.get("/metrics")).text
    assert "tensorfold:client_disconnections_total 1.0" in metrics


@both
async def test_client_that_leaves_between_tokens(server: Server, stream: bool) -> None:
    server.engine.script = [server.ids("a"), HOLD, server.ids("b")]
    reader, writer = await server.connect()
    writer.write(request(body=chat_body(stream=stream, reasoning_effort="none")))
    reply = await server.engine.submitted()
    if stream:
        await reader.readuntil(b'"content":"a"')
    else:
        await reply.started.wait()
    writer.close()
    await freed(reply)


@both
async def test_client_whose_connection_is_reset(server: Server, stream: bool) -> None:
    server.engine.script = [HOLD]
    _, writer = await server.connect()
    writer.write(request(body=chat_body(stream=stream)))
    reply = await server.engine.submitted()
    writer.transport.abort()
    await freed(reply)


async def test_client_that_only_stops_sending_counts_as_gone(server: Server) -> None:
    server.engine.script = [HOLD]
    reader, writer = await server.connect()
    writer.write(request(body=chat_body()))
    reply = await server.engine.submitted()
    writer.write_eof()
    await freed(reply)
    assert await reader.read() == b""
    writer.close()


@both
async def test_client_that_leaves_with_a_second_request_on_its_way(server: Server, stream: bool) -> None:
    server.engine.script = [HOLD]
    _, writer = await server.connect()
    writer.write(request(body=chat_body(stream=stream)))
    reply = await server.engine.submitted()
    # The server must be waiting for this client already when the second request comes.
    assert (await server.http.get("/health")).json()["busy"] is True
    writer.write(request(body=chat_body(stream=stream)))
    writer.close()
    await freed(reply)


async def test_others_go_on_when_one_leaves(server: Server) -> None:
    server.engine.script = [HOLD, server.ids("kept", "<|user|>")]
    body = chat_body(reasoning_effort="none")
    _, leaver = await server.connect()
    leaver.write(request(body=body))
    left = await server.engine.submitted()
    stayer = asyncio.create_task(server.chat(reasoning_effort="none"))
    stayed = await server.engine.submitted()
    leaver.close()
    await freed(left)
    assert not stayed.cancelled.is_set()
    stayed.go_on()
    assert (await stayer).json()["choices"][0]["message"]["content"] == "kept"


async def test_client_that_leaves_while_sending_its_body(server: Server) -> None:
    _, writer = await server.connect()
    writer.write(request(body=chat_body(), headers={"Content-Length": "100000"}))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await server.http.get("/health")).json()["ok"] is True
    assert server.engine.replies == []


async def test_reply_that_ends_is_not_a_disconnection(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    for stream in (False, True):
        assert (await server.chat(stream=stream)).status_code == 200
    assert "tensorfold:client_disconnections_total 0.0" in (await server.http.get("/metrics")).text
    assert not any(reply.cancelled.is_set() for reply in server.engine.replies)


async def test_leaving_is_noticed_beside_a_thousand_idle_connections(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4096
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"at most {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    idle = [await server.connect() for _ in range(1100)]
    try:
        server.engine.script = [HOLD]
        _, writer = await server.connect()
        writer.write(request(body=chat_body()))
        reply = await server.engine.submitted()
        writer.close()
        await freed(reply)
    finally:
        for _, connection in idle:
            connection.close()
        for _, connection in idle:
            await connection.wait_closed()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_stream_headers_come_before_the_first_token(server: Server) -> None:
    server.engine.script = [HOLD, server.ids("<|user|>")]
    reader, writer = await server.connect()
    writer.write(request(body=chat_body(stream=True)))
    status, headers = await read_head(reader)
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    await reader.readuntil(b'"delta":{"role":"assistant"}')
    (await server.engine.submitted()).go_on()
    await reader.readuntil(b"data: [DONE]")
    writer.close()
