# SPDX-License-Identifier: Apache-2.0
"""Slow and stalled clients are let go, and only those."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from sparkpair.api.protocol import Connection
from uvicorn.protocols.http.flow_control import FlowControl

from tests.engine.api.conftest import Serve, Server
from tests.engine.api.raw import chat_body, closed, read_answer, read_head, request

BRIEF = {"head_timeout_s": 0.2, "body_timeout_s": 0.2, "reader_timeout_s": 0.2}
SOON_S = 10


async def ended(reader: asyncio.StreamReader) -> bool:
    """Read to the end of the connection, in whatever way it ends."""
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), SOON_S)
    return True


async def late(server: Server, *parts: bytes) -> None:
    """Send parts of a request and nothing more: 408 and the connection closed."""
    reader, writer = await server.connect()
    for part in parts:
        writer.write(part)
        await writer.drain()
    answer = await asyncio.wait_for(read_answer(reader), SOON_S)
    assert (answer.status, answer.json()["error"]["type"]) == (408, "invalid_request_error")
    assert answer.headers["connection"] == "close"
    assert await closed(reader)
    writer.close()


@pytest.mark.parametrize("part", [b"G", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", b"\r\n"])
async def test_head_that_does_not_end(serve: Serve, part: bytes) -> None:
    async with serve(**BRIEF) as server:
        await late(server, part)


async def test_head_that_does_not_end_behind_a_whole_request(serve: Serve) -> None:
    async with serve(**BRIEF) as server:
        reader, writer = await server.connect()
        for part in (request("/health", method="GET"), b"GET /heal"):
            writer.write(part)
            if part != b"GET /heal":
                assert (await read_answer(reader)).status == 200
        assert (await asyncio.wait_for(read_answer(reader), SOON_S)).status == 408
        assert await closed(reader)
        writer.close()


async def test_connection_that_says_nothing_is_closed_without_a_word(serve: Serve) -> None:
    async with serve(**BRIEF) as server:
        reader, writer = await server.connect()
        assert await closed(reader)
        writer.close()


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
async def test_body_that_does_not_come(serve: Serve, chunked: bool) -> None:
    async with serve(**BRIEF) as server:
        if chunked:
            await late(server, request(chunks=[b"{}"]).removesuffix(b"0\r\n\r\n"))
        else:
            await late(server, request(body=b"{", headers={"Content-Length": "9999"}))
        assert server.engine.replies == []


async def test_body_that_trickles(serve: Serve) -> None:
    async with serve(**BRIEF) as server:
        reader, writer = await server.connect()
        writer.write(request(body=b"", headers={"Content-Length": "9999"}))

        async def trickle() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        assert (await asyncio.wait_for(read_answer(reader), SOON_S)).status == 408
        trickling.cancel()
        writer.close()


async def test_body_that_is_slow_but_goes_on_is_read(serve: Serve) -> None:
    async with serve(**{**BRIEF, "body_rate": 10}) as server:
        server.says("</think>", "Yes.", "<|user|>")
        reader, writer = await server.connect()
        body = chat_body() + b" " * 300
        writer.write(request(body=b"", headers={"Content-Length": str(len(body))}))
        for start in range(0, len(body), 20):
            writer.write(body[start : start + 20])
            await asyncio.sleep(0.03)
        assert (await asyncio.wait_for(read_answer(reader), SOON_S)).status == 200
        writer.close()


async def test_waiting_for_a_long_prompt_is_not_lateness(serve: Serve) -> None:
    async with serve(["hold", [1]], **BRIEF) as server:
        asking = asyncio.create_task(server.chat(max_tokens=1))
        reply = await server.engine.submitted()
        await asyncio.sleep(3 * BRIEF["head_timeout_s"])
        reply.go_on()
        assert (await asking).status_code == 200


async def test_early_answer_and_a_body_that_never_ends_close_the_connection(serve: Serve) -> None:
    async with serve(max_body_bytes=1000) as server:
        reader, writer = await server.connect()
        writer.write(request(body=b" " * 1001, headers={"Content-Length": "100000000"}))
        assert (await read_answer(reader)).status == 413
        writer.write(b" " * 400_000)
        assert await ended(reader)
        writer.close()


async def connect_without_reading(
    server: Server, sent: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
    """A client with the smallest receive buffer that reads one head and then nothing; and the body's length."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=2048)
    writer.write(sent)
    _, headers = await read_head(reader)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer, int(headers.get("content-length", "0"))


async def test_reader_of_a_stream_who_stalls_frees_the_engine(serve: Serve) -> None:
    async with serve(**BRIEF) as server:
        server.engine.context_length = 200_000
        server.engine.script = [[300]] * 60_000
        body = chat_body(stream=True, max_tokens=60_000)
        _, writer, _ = await connect_without_reading(server, request(body=body))
        reply = await server.engine.submitted()
        await asyncio.wait_for(reply.cancelled.wait(), 2 * SOON_S)
        await asyncio.wait_for(reply.ended.wait(), SOON_S)
        assert "tensorfold:client_disconnections_total 1.0" in (await server.http.get("/metrics")).text
        writer.transport.abort()


async def test_reader_of_a_whole_reply_who_stalls_is_let_go(serve: Serve) -> None:
    async with serve(**BRIEF) as server:
        body = json.dumps({"prompt": "a b c " * 500_000}).encode()
        reader, writer, length = await connect_without_reading(server, request("/tokenize", body))
        await asyncio.sleep(3 * BRIEF["reader_timeout_s"])
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError):
            assert len(await asyncio.wait_for(reader.read(), 2 * SOON_S)) < length
        writer.close()


async def test_slow_reader_who_goes_on_gets_the_whole_reply(serve: Serve) -> None:
    async with serve(**BRIEF) as server:
        server.engine.context_length = 200_000
        server.engine.script = [[300]] * 20_000
        reader, writer = await server.connect()
        writer.write(request(body=chat_body(stream=True, max_tokens=20_000)))
        received = b""
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            piece = await asyncio.wait_for(reader.read(1 << 18), SOON_S)
            assert piece
            received = received[-100:] + piece
            await asyncio.sleep(0.01)
        assert not server.engine.replies[0].cancelled.is_set()
        writer.close()


def test_a_connection_notes_when_its_client_stalls_and_when_it_reads_on() -> None:
    """What the kernel keeps for a client decides when that is, so here it is said."""
    noted: list[str] = []

    class Noted:
        def __getattr__(self, name: str) -> Callable[[], None]:
            return lambda: noted.append(name)

    connection = Connection.__new__(Connection)
    connection.flow = FlowControl(Noted())  # type: ignore[arg-type]
    connection._patience = Noted()  # type: ignore[assignment]
    for call in (connection.pause_writing, connection.resume_writing):
        call()
    assert noted == ["reader_stalls", "reader_goes_on"]


async def test_large_bodies_at_once_are_limited_and_the_room_is_given_back(serve: Serve) -> None:
    limit = 100_000
    async with serve(max_body_bytes=limit) as server:
        server.says("</think>", "Yes.", "<|user|>")
        part = request(body=b"{" + b" " * (limit - 100), headers={"Content-Length": str(limit)})
        held = []
        for _ in range(4):
            reader, writer = await server.connect()
            writer.write(part)
            await writer.drain()
            held.append((reader, writer))
        # Bodies are read as they come: the fifth is refused once the four have been read.
        response: Any = None
        for _ in range(100):
            response = await server.http.post("/v1/chat/completions", content=chat_body() + b" " * 50_000)
            if response.status_code == 429:
                break
        assert (response.status_code, response.headers["retry-after"]) == (429, "5")
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert (await server.chat()).status_code == 200, "small requests still fit"
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        for _ in range(100):
            response = await server.http.post("/v1/chat/completions", content=chat_body() + b" " * 50_000)
            if response.status_code == 200:
                break
        assert response.status_code == 200
