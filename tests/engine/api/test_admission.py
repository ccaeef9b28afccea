# SPDX-License-Identifier: Apache-2.0
"""A full server says so before a reply begins, to exactly the requests that do not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.raw import chat_body, request
from tests.engine.api.scripted import HOLD

BUSY = "the server is busy: 1 requests run and 0 may wait; try again later"
HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"model": MODEL, "max_tokens": 9, "messages": HI},
}


def release(server: Server) -> None:
    for reply in server.engine.replies:
        reply.go_on()


@pytest.mark.parametrize("path", BODIES)
async def test_refusal_is_the_same_streamed_or_not_and_comes_before_the_stream(serve: Serve, path: str) -> None:
    async with serve([HOLD, [1]], max_queued=0, keepalive_s=0) as server:
        running = asyncio.create_task(server.chat(max_tokens=1))
        await server.engine.submitted()
        for stream in (False, True):
            response = await server.http.post(path, json={**BODIES[path], "stream": stream})
            assert (response.status_code, response.headers["retry-after"]) == (429, "5")
            assert response.headers["content-type"] == "application/json"
            told = response.json()
            if path == "/v1/messages":
                assert told["type"] == "error"
                assert told["error"] == {"type": "overloaded_error", "message": BUSY}
            else:
                limited = {"type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
                assert told == {"error": {"message": BUSY, **limited}}
        with pytest.raises(openai.RateLimitError):
            await server.openai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
        assert len(server.engine.replies) == 1
        release(server)
        assert (await running).status_code == 200


@pytest.mark.parametrize("queued", [0, 3])
async def test_burst_gets_exactly_the_places_there_are(serve: Serve, queued: int) -> None:
    async with serve([HOLD, [1]], max_queued=queued) as server:
        burst = [asyncio.create_task(server.chat(max_tokens=1, stream=bool(n % 2))) for n in range(40)]
        places = 1 + queued
        refused = 0
        for next_done in asyncio.as_completed(burst):
            refused += (await next_done).status_code == 429
            if refused == len(burst) - places:
                break
        assert len(server.engine.replies) == places
        release(server)
        statuses = [(await task).status_code for task in burst]
        assert (statuses.count(200), statuses.count(429)) == (places, len(burst) - places)


async def test_place_is_free_again_when_a_waiting_client_leaves(serve: Serve) -> None:
    async with serve([HOLD, [1]], max_queued=0) as server:
        _, writer = await server.connect()
        writer.write(request(body=chat_body()))
        reply = await server.engine.submitted()
        writer.close()
        await asyncio.wait_for(reply.ended.wait(), 10)
        server.engine.script = [[1]]
        assert (await server.chat(max_tokens=1)).status_code == 200


async def test_any_number_may_wait_by_default(serve: Serve) -> None:
    async with serve([HOLD, [1]]) as server:
        burst = [asyncio.create_task(server.chat(max_tokens=1)) for _ in range(20)]
        while len(server.engine.replies) < len(burst):
            await server.engine.submitted()
        release(server)
        assert {(await task).status_code for task in burst} == {200}


async def test_malformed_request_is_a_400_also_when_full(serve: Serve) -> None:
    async with serve([HOLD, [1]], max_queued=0) as server:
        running = asyncio.create_task(server.chat(max_tokens=1))
        await server.engine.submitted()
        assert (await server.chat(n=2)).status_code == 400
        release(server)
        await running
