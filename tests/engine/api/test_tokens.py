# SPDX-License-Identifier: Apache-2.0
"""Tokenizing: the ids are those that the generating routes run, and text comes back from them unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.api.conftest import MODEL, Server

CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "low"},
    {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "system", "content": "Be <|user|> brief."}, {"role": "user", "content": "ď삼👋" * 20_000}]},
]


@pytest.mark.parametrize("body", CONVERSATIONS, ids=["plain", "effort", "no thinking", "long"])
async def test_conversation_has_the_ids_that_the_chat_route_runs(server: Server, body: dict[str, Any]) -> None:
    server.engine.context_length = 1_000_000
    server.says("</think>", "Yes.", "<|user|>")
    reply = (await server.http.post("/tokenize", json={"model": MODEL, **body})).json()
    await server.chat(**body)
    assert tuple(reply["tokens"]) == server.engine.last.prompt_ids
    assert reply == {
        "count": len(reply["tokens"]), "max_model_len": 1_000_000, "tokens": reply["tokens"], "token_strs": None
    }  # fmt: skip


async def test_conversation_without_the_opening_of_a_reply(server: Server) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    tokens = (await server.http.post("/v1/tokenize", json=body)).json()["tokens"]
    assert tokens[-len(server.ids("<|user|>", "Hi")) :] == server.ids("<|user|>", "Hi")


async def test_prompt_has_the_ids_that_the_completion_route_runs(server: Server) -> None:
    for markers in (True, False):
        body = {"prompt": "Hi<|user|>ď", "add_special_tokens": markers}
        tokens = (await server.http.post("/v1/tokenize", json=body)).json()["tokens"]
        await server.http.post("/v1/completions", json=body)
        assert tuple(tokens) == server.engine.last.prompt_ids
    default = (await server.http.post("/tokenize", json={"prompt": "Hi<|user|>"})).json()["tokens"]
    assert default == server.ids("Hi", "<|user|>")


async def test_token_strings_are_given_when_asked_for(server: Server) -> None:
    body = {"prompt": "Hello world <|user|>", "return_token_strs": True}
    reply = (await server.http.post("/tokenize", json=body)).json()
    assert len(reply["token_strs"]) == reply["count"] == len(reply["tokens"])
    assert "".join(reply["token_strs"]) == "Hello world <|user|>"
    assert (await server.http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []


@pytest.mark.parametrize("text", ["", "Hi<|user|> ď삼👋\n", "word " * 40_000], ids=["empty", "markers", "long"])
async def test_text_comes_back_from_its_ids(server: Server, text: str) -> None:
    tokens = (await server.http.post("/tokenize", json={"prompt": text})).json()["tokens"]
    for path in ("/detokenize", "/v1/detokenize/"):
        assert (await server.http.post(path, json={"tokens": tokens})).json() == {"prompt": text}


async def test_half_a_character_is_marked_as_such(server: Server) -> None:
    tokens = server.ids("\u0e01")
    if len(tokens) == 1:
        pytest.fail("this test needs a character of several tokens")
    assert (await server.http.post("/detokenize", json={"tokens": tokens[:-1]})).json() == {"prompt": "\ufffd"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "Hi"}]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "critic"}]}, "messages"),
        ("/tokenize", {"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"prompt": "a", "model": 5}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [1.0]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [1] * 40_000 + ["a"]}, "tokens"),
    ],
)
async def test_malformed_requests_are_refused_by_field(
    server: Server, path: str, body: dict[str, Any], param: str
) -> None:
    response = await server.http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_unknown_model_is_refused(server: Server) -> None:
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        response = await server.http.post(path, json={"model": "other", **body})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
