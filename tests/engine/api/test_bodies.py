# SPDX-License-Identifier: Apache-2.0
"""Bodies of every size and coding: read whole or refused, checked while streams go on, and never the next request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sparkpair.api.body import OFF_LOOP_BYTES
from sparkpair.api.fields import Fields
from sparkpair.api.notices import Notices
from sparkpair.api.options import ApiOptions

from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.raw import chat_body, read_answer, request
from tests.engine.api.test_malformed import HI, check, exchange


async def test_chunked_bodies_are_read_whole_and_the_connection_goes_on(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    body = chat_body()
    chunked = request(chunks=[body[:1], body[1:20], body[20:]])
    answers = await exchange(server, chunked, chunked, request("/health", method="GET"))
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert answers[1].json()["choices"][0]["message"]["content"] == "Yes."


async def test_refused_bodies_never_become_the_next_request(server: Server) -> None:
    smuggled = request("/v1/models", method="GET")
    for path, status in (("/v1/unknown", 404), ("/v1/models", 405), ("/v1/completions", 400)):
        answers = await exchange(server, request(path, smuggled * 2000), request("/health", method="GET"))
        assert [answer.status for answer in answers] == [status, 200], path
        assert answers[1].json()["backend"] == "sparkpair"


@pytest.mark.parametrize("chunked", [False, True], ids=["sized", "chunked"])
async def test_body_over_the_limit_is_413_and_the_connection_stays_usable(serve: Serve, chunked: bool) -> None:
    limit = 100_000
    async with serve(max_body_bytes=limit) as server:
        server.says("</think>", "Yes.", "<|user|>")
        fits = chat_body() + b" " * (limit - len(chat_body()))
        over = fits + b" "

        def send(body: bytes) -> bytes:
            return request(chunks=[body[:50_000], body[50_000:]]) if chunked else request(body=body)

        answers = await exchange(server, send(fits), send(over), send(fits))
        assert [answer.status for answer in answers] == [200, 413, 200]
        error = check(413, answers[1].json(), 413)
        assert (error["type"], str(limit) in error["message"]) == ("invalid_request_error", True)


async def test_declared_oversize_is_refused_before_the_client_sends_it(serve: Serve) -> None:
    async with serve(max_body_bytes=1000) as server:
        reader, writer = await server.connect()
        writer.write(request(body=b"", headers={"Content-Length": "1001", "Expect": "100-continue"}))
        assert (await read_answer(reader)).status == 413
        writer.close()


async def test_expected_continue_is_given_for_a_body_that_fits(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    reader, writer = await server.connect()
    head, _, body = request(body=chat_body(), headers={"Expect": "100-continue"}).partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await read_answer(reader)).status == 200
    writer.close()


def test_bodies_up_to_96_mib_are_read_by_default(tmp_path: Any) -> None:
    assert ApiOptions(model_dir=tmp_path, model_name="m").max_body_bytes == 96 * 1024 * 1024


async def test_large_prompts_are_handled_like_small_ones(server: Server) -> None:
    text = "word " * 20_000
    server.engine.context_length = 200_000
    server.says("</think>", "Yes.", "<|user|>")
    response = await server.chat(messages=[{"role": "user", "content": text}])
    assert response.status_code == 200
    assert text.encode() in b"".join(map(server.tokenizer.token_bytes, server.engine.last.prompt_ids))
    response = await server.http.post("/v1/completions", json={"prompt": text})
    assert list(server.engine.last.prompt_ids) == server.tokenizer.encode_text(text)


CHECKED: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/chat/completions": ("chat.chat_params", {"messages": HI}),
    "/v1/completions": ("completions.completion_params", {"prompt": "Hi"}),
    "/v1/responses": ("responses.chat_params", {"input": "Hi"}),
    "/v1/messages": ("messages.chat_params", {"model": MODEL, "max_tokens": 9, "messages": HI}),
    "/v1/messages/count_tokens": ("messages.chat_params", {"model": MODEL, "messages": HI}),
    "/tokenize": ("tokens.chat_params", {"messages": HI}),
}
"""Routes, what checks the fields of their bodies, and a body."""


@pytest.mark.parametrize("path", CHECKED)
async def test_a_large_body_is_checked_beside_the_loop_that_serves_streams(
    server: Server, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, body = CHECKED[path]
    module, function = name.split(".")
    place = f"sparkpair.api.{module}.{function}"
    checked = __import__(f"sparkpair.api.{module}", fromlist=[function])
    original, threads = getattr(checked, function), []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return original(*arguments)

    monkeypatch.setattr(place, noted)
    server.says("</think>", "Yes.", "<|user|>")
    for text in (json.dumps(body), json.dumps(body) + " " * OFF_LOOP_BYTES):
        assert (await server.http.post(path, content=text)).status_code == 200
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_of_very_many_fields_without_effect_only_the_first_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    looked_at = 0

    class Many(dict[str, Any]):
        def __iter__(self) -> Iterator[str]:
            nonlocal looked_at
            for number in range(10**6):
                looked_at += 1
                yield f"field{number}"

    notices = Notices()
    for _ in range(2):
        notices.unknown("route", Fields(Many()))
    assert len(caplog.records) < looked_at < 1000
    assert "'field0'" in caplog.text
