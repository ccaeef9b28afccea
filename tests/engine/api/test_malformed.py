# SPDX-License-Identifier: Apache-2.0
"""Malformed and hostile requests: each gets its documented error with all four keys, and the server goes
on.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.api.conftest import Server
from tests.engine.api.raw import Answer, chat_body, closed, read_answer, request
from tests.engine.api.scripted import HOLD

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def messages(*given: Any) -> dict[str, Any]:
    return {"messages": list(given)}


# Each: the fields sent, and the `param` of the 400.
CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"n": "1"}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": "yes"}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"top_logprobs": "a"}, "top_logprobs"),
    ({"temperature": True}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": []}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"temperature": "nan"}, "temperature"),
    ({"temperature": "1_0"}, "temperature"),
    ({"top_p": False}, "top_p"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": "inf"}, "top_p"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": {}}, "min_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": True}, "top_k"),
    ({"top_k": "many"}, "top_k"),
    ({"seed": 0.5}, "seed"),
    ({"seed": False}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "9" * 50}, "seed"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "ten"}, "max_tokens"),
    ({"max_tokens": 10**30}, "messages"),
    ({"max_completion_tokens": []}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": "x"}, "min_tokens"),
    ({"thinking_budget": True}, "thinking_budget"),
    ({"thinking_budget": -1}, "thinking_budget"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": ["a", 1]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": {}}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"ignore_eos": "true"}, "ignore_eos"),
    ({"stream": "true"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"stream_options": {"include_usage": 1}}, "stream_options"),
    ({"draft": "no"}, "draft"),
    ({"return_token_ids": 0}, "return_token_ids"),
    ({"model": 5}, "model"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"modalities": "text"}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"video": "x"}, "video"),
    ({"tools": "f"}, "tools"),
    ({"tools": ["f"]}, "tools"),
    ({"tools": [{"type": "custom", "name": "f"}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools"),
    ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}},
        "tool_choice",
    ),
    ({"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": ""}, "chat_template_kwargs"),
    ({"chat_template_kwargs": False}, "chat_template_kwargs"),
    ({"chat_template_kwargs": 0}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"clear_thinking": 1}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"reasoning_effort": "huge"}}, "reasoning_effort"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"reasoning_effort": 3}, "reasoning_effort"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, "response_format"),
    ({"response_format": "json"}, "response_format"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_choice": ["a", 1]}, "guided_choice"),
    ({"guided_grammar": ["root"]}, "guided_grammar"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs"),
    ({"messages": None}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": {}}, "messages"),
    (messages("Hi"), "messages"),
    (messages({"content": "Hi"}), "messages"),
    (messages({"role": "critic", "content": "Hi"}), "messages"),
    (messages({"role": ["user"], "content": "Hi"}), "messages"),
    (messages({"role": "user", "content": 5}), "messages"),
    (messages({"role": "user", "content": {"type": "text"}}), "messages"),
    (messages({"role": "user", "content": ["Hi"]}), "messages"),
    (messages({"role": "user", "content": [{"type": "text"}]}), "messages"),
    (messages({"role": "user", "content": [{"type": "text", "text": None}]}), "messages"),
    (messages({"role": "user", "content": [{"type": ["text"], "text": "a"}]}), "messages"),
    (messages({"role": "user", "content": [{"type": "poem", "text": "a"}]}), "messages"),
    (messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}), "messages"),
    (messages({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}), "messages"),
    (messages(*HI, {"role": "assistant", "reasoning_content": 5}), "messages"),
    (messages(*HI, {"role": "assistant", "tool_calls": "f"}), "messages"),
    (messages(*HI, {"role": "assistant", "tool_calls": [{}]}), "messages"),
    (messages(*HI, {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}), "messages"),
    (messages(*HI, {"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "f"}}]}), "messages"),
    (messages(*HI, {"role": "tool", "tool_call_id": 7, "content": "x"}), "messages"),
]

COMPLETION_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1, 2]]}, "prompt"),
    ({"prompt": [1, True]}, "prompt"),
    ({"prompt": [1, 2.0]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1535]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": [1] * 4096}, "prompt"),
    ({"prompt": "a", "max_tokens": 4096}, "prompt"),
    ({"prompt": "a", "logprobs": 1}, "logprobs"),
    ({"prompt": "a", "echo": True}, "echo"),
    ({"prompt": "a", "echo": "no"}, "echo"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "best_of": "x"}, "best_of"),
    ({"prompt": "a", "n": 3}, "n"),
    ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ({"prompt": "a", "guided_json": "{"}, "guided_json"),
    ({"prompt": "a", "temperature": "x"}, "temperature"),
]

# Each: a body that is no acceptable JSON object.
BODIES = {
    "empty": b"",
    "not json": b"messages=Hi",
    "cut": b'{"messages": [',
    "list": b"[]",
    "string": b'"Hi"',
    "null": b"null",
    "number": b"5",
    "trailing": chat_body() + b"}",
    "two objects": chat_body() + chat_body(),
    "not utf-8": b'{"messages": "\xff"}',
    "utf-16": chat_body().decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + chat_body(),
    "raw surrogate": b'{"messages": "\xed\xa0\x80"}',
    "nan": b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": NaN}',
    "infinity": b'{"messages": [{"role": "user", "content": "Hi"}], "top_k": -Infinity}',
    "overflow": b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": 1e999}',
    "half surrogate": b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
    "half surrogate key": b'{"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"\\uDE00": 1}}',
    "deep lists": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "long number": b'{"messages": [{"role": "user", "content": "Hi"}], "seed": ' + b"9" * 5000 + b"}",
    "control character": b'{"messages": [{"role": "user", "content": "a\nb"}]}',
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}


def check(status: int, body: Any, expected: int = 400) -> dict[str, Any]:
    """An error object with all four keys of the right types; returned."""
    assert status == expected, body
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert isinstance(error["type"], str)
    for key in ("param", "code"):
        assert isinstance(error[key], str | None)
    return error


async def alive(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    assert (await server.chat()).json()["choices"][0]["message"]["content"] == "Yes."


def test_corpus_is_large_enough() -> None:
    assert len(CHAT_FIELDS) + len(COMPLETION_FIELDS) + len(BODIES) >= 150


async def test_every_bad_chat_field_is_refused_by_name_streamed_or_not(server: Server) -> None:
    for fields, param in CHAT_FIELDS:
        for stream in (False, True):
            response = await server.http.post(
                "/v1/chat/completions", content=json.dumps({"messages": HI, "stream": stream, **fields})
            )
            error = check(response.status_code, response.json())
            assert (error["param"], error["type"]) == (param, "invalid_request_error"), fields
            assert response.headers["content-type"] == "application/json"
    assert server.engine.replies == []
    await alive(server)


async def test_every_bad_completion_field_is_refused_by_name(server: Server) -> None:
    for fields, param in COMPLETION_FIELDS:
        response = await server.http.post("/v1/completions", content=json.dumps(fields))
        assert check(response.status_code, response.json())["param"] == param, fields
    assert server.engine.replies == []
    await alive(server)


async def test_every_bad_body_is_refused(server: Server) -> None:
    for name, body in BODIES.items():
        for path in ("/v1/chat/completions", "/v1/completions"):
            response = await server.http.post(path, content=body)
            assert response.status_code == 400, name
            assert check(400, response.json())["type"] == "invalid_request_error", name
    assert server.engine.replies == []
    await alive(server)


@pytest.mark.parametrize("depth", [10, 900])
async def test_deeply_nested_template_variables_are_taken_or_refused(server: Server, depth: int) -> None:
    variable = b"[" * depth + b"]" * depth
    body = chat_body()[:-1] + b', "chat_template_kwargs": {"x": ' + variable + b"}}"
    server.says("</think>", "Yes.", "<|user|>")
    assert (await server.http.post("/v1/chat/completions", content=body)).status_code in (200, 400)
    await alive(server)


async def test_unknown_routes_and_methods(server: Server) -> None:
    for method, path, status, code in [
        ("GET", "/page", 404, "unknown_url"),
        ("GET", "/v1", 404, "unknown_url"),
        ("POST", "/v1/decisions", 404, "unknown_url"),
        ("GET", "/v2/models", 404, "unknown_url"),
        ("GET", "/docs", 404, "unknown_url"),
        ("GET", "/v1/models/none", 404, "model_not_found"),
        ("GET", "/v1/chat/completions", 405, None),
        ("PUT", "/v1/completions", 405, None),
        ("POST", "/v1/models", 405, None),
        ("DELETE", "/health", 405, None),
    ]:
        response = await server.http.request(method, path, content=b"x" * 200_000 if method == "POST" else None)
        assert check(response.status_code, response.json(), status)["code"] == code, path
        assert ("allow" in response.headers) == (status == 405)
    await alive(server)


async def exchange(server: Server, *requests: bytes) -> list[Answer]:
    """Send requests one after another on one connection and read their replies."""
    reader, writer = await server.connect()
    answers = []
    for sent in requests:
        writer.write(sent)
        answers.append(await read_answer(reader))
    writer.close()
    return answers


@pytest.mark.parametrize(
    "sent",
    [
        request(body=chat_body(), headers={"Content-Length": "10", "Transfer-Encoding": "chunked"}),
        request(body=chat_body(), headers={"Content-Length": "ten"}),
        request(body=chat_body(), headers={"Content-Length": "-1"}),
        request(body=chat_body(), headers={"Content-Length": "5\r\nContent-Length: 6"}),
        request(body=b"zz\r\n{}\r\n0\r\n\r\n", headers={"Transfer-Encoding": "chunked", "Content-Length": ""}),
        request(body=b"x", headers={"Transfer-Encoding": "gzip", "Content-Length": ""}),
        b"POST /v1/chat/completions HTTP/1.1\r\nHost test\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nA: " + b"a" * 70_000,
        b"GET /health HTTP/1.1\r\n" + b"A: a\r\n" * 15_000,
        b"CONNECT h:80 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /\u00e9 HTTP/1.1\r\n\r\n".encode(),
    ],
    ids=[
        "length and chunks", "length no number", "length negative", "two lengths", "chunk size", "other coding",
        "header without colon", "no path", "tls", "version", "endless header", "endless headers", "connect", "http/2",
        "raw utf-8 path",
    ],
)  # fmt: skip
async def test_request_that_is_not_http_is_refused_and_the_connection_closed(server: Server, sent: bytes) -> None:
    reader, writer = await server.connect()
    writer.write(sent)
    answer = await read_answer(reader)
    assert check(answer.status, answer.json())["type"] == "invalid_request_error"
    assert answer.headers["connection"] == "close"
    assert await closed(reader)
    writer.close()
    await alive(server)


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_offer_of_another_protocol_is_passed_over_and_the_body_read(server: Server, protocol: str) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": protocol, "HTTP2-Settings": "AAMAAABk"}
    body = chat_body()
    sized, chunked = request(body=body, headers=offer), request(chunks=[body[:9], body[9:]], headers=offer)
    answers = await exchange(server, sized, chunked, request("/health", method="GET", headers=offer))
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert answers[1].json()["choices"][0]["message"]["content"] == "Yes."


async def test_odd_but_valid_request_lines_are_answered(server: Server) -> None:
    for line, status in [
        (b"GET http://other/health HTTP/1.1", 200),
        (b"GET /health HTTP/1.0", 200),
        (b"OPTIONS * HTTP/1.1", 404),
        (b"GET /%ff%00 HTTP/1.1", 404),
        (b"GET /v1/models/%2e%2e%2f HTTP/1.1", 404),
        (b"POST /v1/models HTTP/1.1", 405),
    ]:
        reader, writer = await server.connect()
        writer.write(line + b"\r\n\r\n")
        answer = await read_answer(reader)
        assert answer.status == status, line
        if status != 200:
            check(answer.status, answer.json(), status)
        writer.close()


async def test_requests_sent_ahead_are_answered_in_order(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    reader, writer = await server.connect()
    writer.write(request("/health", method="GET") + request(body=chat_body()) + request("/none", method="GET"))
    assert [(await read_answer(reader)).status for _ in range(3)] == [200, 200, 404]
    writer.close()


async def test_garbage_behind_a_running_stream_ends_the_connection_without_an_answer(server: Server) -> None:
    server.engine.script = [HOLD]
    reader, writer = await server.connect()
    writer.write(request(body=chat_body(stream=True)))
    await reader.readuntil(b"assistant")
    reply = await server.engine.submitted()
    writer.write(b"\x00\x01garbage\r\n\r\n")
    rest = await reader.read()
    assert b"HTTP/1.1 400" not in rest
    await reply.cancelled.wait()
    writer.close()
