# SPDX-License-Identifier: Apache-2.0
"""For any output with calls in it, cut into events anywhere, every dialect tells the same reply, streamed and not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparkpair.chat.call_block import CALL_MARKERS
from sparkpair.chat.tokenizer import TextTokenizer
from sparkpair.request import GenerationRequest

from tests.engine.api.background import Background
from tests.engine.api.scripted import ScriptedEngine, ScriptedReply

Reply = tuple[str, str, list[tuple[str, Any]], str, int, int]
"""Reasoning, content, calls, finish reason, completion and reasoning tokens."""

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
NAMES = ("get", "get_all")
HI = [{"role": "user", "content": "Hi"}]


class PlannedEngine(ScriptedEngine):
    """Says `ids` whatever it is asked: a request that continues a reply gets what stands at its place in the plan."""

    def plan(self, ids: list[int], cuts: list[int]) -> None:
        """What the next reply and its continuations say, in events that end at the cuts."""
        self._ids, self._cuts, self._begin = ids, cuts, 0

    def submit(self, request: GenerationRequest) -> ScriptedReply:
        """See request.Engine."""
        self._begin = self._begin or len(request.prompt_ids)
        rest = self._ids[len(request.prompt_ids) - self._begin :]
        bounds = [0, *sorted(min(cut, len(rest)) for cut in self._cuts), len(rest)]
        self.script = [rest[a:b] for a, b in itertools.pairwise(bounds) if a < b]
        return super().submit(request)


@pytest.fixture(scope="module")
def background(text_directory: Path) -> Iterator[tuple[PlannedEngine, httpx.Client]]:
    engine = PlannedEngine()
    server = Background(text_directory, engine)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=20) as client:
        yield engine, client
    server.close()


def data_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of a stream's events."""
    assert response.status_code == 200, response.text
    lines = [line for block in response.text.split("\n\n") for line in block.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def chat_reply(message: dict[str, Any], reason: str, usage: dict[str, Any]) -> Reply:
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls", ())
    ]
    texts = (message.get("reasoning_content") or "", message.get("content") or "")
    return (*texts, calls, reason, usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"])


def chat_stream(events: list[dict[str, Any]]) -> Reply:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in events:
        for key, value in event["choices"][0]["delta"].items():
            if key != "role":
                message[key] += value
    return chat_reply(message, events[-1]["choices"][0]["finish_reason"], events[-1]["usage"])


def response_reply(response: dict[str, Any]) -> Reply:
    texts = {"reasoning": "", "message": ""}
    calls = []
    for item in response["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], json.loads(item["arguments"])))
        else:
            texts[item["type"]] += item["content"][0]["text"]
    reason = "length" if response["status"] == "incomplete" else "tool_calls" if calls else "stop"
    usage = response["usage"]
    counts = (usage["output_tokens"], usage["output_tokens_details"]["reasoning_tokens"])
    return (texts["reasoning"], texts["message"], calls, reason, *counts)


def response_stream(events: list[dict[str, Any]]) -> Reply:
    """From the deltas alone, apart from what only the last event has."""
    items: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            items.append({**event["item"], "arguments": "", "content": [{"text": ""}]})
        elif event["type"] == "response.function_call_arguments.delta":
            items[event["output_index"]]["arguments"] += event["delta"]
        elif event["type"].endswith("_text.delta"):
            items[event["output_index"]]["content"][0]["text"] += event["delta"]
    return response_reply({**events[-1]["response"], "output": items})


def message_reply(message: dict[str, Any]) -> Reply:
    texts = {"thinking": "", "text": ""}
    calls = []
    for block in message["content"]:
        if block["type"] == "tool_use":
            calls.append((block["name"], block["input"]))
        else:
            texts[block["type"]] += block[block["type"]]
    reasons = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
    usage = message["usage"]
    counts = (usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"])
    return (texts["thinking"], texts["text"], calls, reasons[message["stop_reason"]], *counts)


def message_stream(events: list[dict[str, Any]]) -> Reply:
    message: dict[str, Any] = {"content": []}
    for event in events:
        if event["type"] == "content_block_start":
            message["content"].append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                block["input"] = json.loads(delta["partial_json"])
            else:
                key = delta["type"].removesuffix("_delta")
                block[key] += delta[key]
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    return message_reply(message)


words = st.sampled_from([*NAMES, "n", "s", "1", " ", "\n", "no", "👋"])
part = st.one_of(st.sampled_from([*CALL_MARKERS, *CALL_MARKERS, "</think>", "<|user|>"]), words, st.text(max_size=3))
call = st.sampled_from(
    [
        ["<tool_call>", "get", "</tool_call>"],
        ["<tool_call>", "get_all", "<arg_key>", "n", "</arg_key>", "<arg_value>", "7", "</arg_value>", "</tool_call>"],
        ["<tool_call>", "get", "<arg_key>", "s", "</arg_key>", "<arg_value>", "\n7", "</arg_value>"],
    ]
)
outputs = st.lists(st.one_of(call, part.map(lambda p: [p]), st.just(["</think>"])), max_size=8)


@given(
    output=outputs,
    tail=st.integers(0, 255) | st.none(),
    cuts=st.lists(st.lists(st.integers(0, 40), max_size=5), min_size=6, max_size=6),
    stop=st.none() | st.sampled_from(["o", "arg", "ll>", "7"]),
    limit=st.integers(1, 60),
    choice=st.sampled_from(["auto", "auto", "required", "get"]),
    parallel=st.booleans(),
    budget=st.none() | st.integers(1, 10),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_dialect_tells_the_same_reply_streamed_and_not(
    background: tuple[PlannedEngine, httpx.Client],
    tokenizer: TextTokenizer,
    output: list[list[str]],
    tail: int | None,
    cuts: list[list[int]],
    stop: str | None,
    limit: int,
    choice: str,
    parallel: bool,
    budget: int | None,
) -> None:
    engine, client = background
    limit = limit if budget is None else max(limit, budget + 1)  # as the Messages dialect wants it
    ids = [] if tail is None else [tail]
    for text in (text for group in reversed(output) for text in reversed(group)):
        ids = [*([tokenizer.marker_ids[text]] if text in tokenizer.marker_ids else tokenizer.encode_text(text)), *ids]
    functions = [{"name": name, "parameters": SCHEMA} for name in NAMES]
    tools = [{"type": "function", "function": function} for function in functions]
    named = {"type": "function", "name": choice}
    chat: dict[str, Any] = {"messages": HI, "tools": tools, "max_tokens": limit, "stop": stop, "return_token_ids": True}
    chat |= {"parallel_tool_calls": parallel, "thinking_budget": budget, "reasoning_effort": "high"}
    chat["tool_choice"] = {"type": "function", "function": {"name": choice}} if choice == "get" else choice
    response: dict[str, Any] = {
        "input": "Hi",
        "max_output_tokens": limit,
        "stop": stop,
        "reasoning": {"effort": "high"},
    }
    response |= {"tools": [{"type": "function", **function} for function in functions], "thinking_budget": budget}
    response |= {"tool_choice": named if choice == "get" else choice, "parallel_tool_calls": parallel}
    message: dict[str, Any] = {"model": "m", "messages": HI, "max_tokens": limit, "output_config": {"effort": "high"}}
    message["tools"] = [{"name": function["name"], "input_schema": SCHEMA} for function in functions]
    message["stop_sequences"] = None if stop is None else [stop]
    kind = {"type": "tool", "name": "get"} if choice == "get" else {"type": {"required": "any"}.get(choice, "auto")}
    message["tool_choice"] = {**kind, "disable_parallel_tool_use": not parallel}
    message["thinking"] = {"type": "adaptive"}
    if budget is not None:
        message["thinking"] = {"type": "enabled", "budget_tokens": budget}

    def post(path: str, body: dict[str, Any], number: int) -> httpx.Response:
        engine.plan(ids, cuts[number])
        return client.post(path, json={**body, "stream": number % 2 == 1})

    whole = post("/chat/completions", chat, 0).json()
    told = chat_reply(whole["choices"][0]["message"], whole["choices"][0]["finish_reason"], whole["usage"])
    assert chat_stream(data_of(post("/chat/completions", chat, 1))) == told
    assert response_reply(post("/responses", response, 2).json()) == told
    assert response_stream(data_of(post("/responses", response, 3))) == told
    assert message_reply(post("/messages", message, 4).json()) == told
    assert message_stream(data_of(post("/messages", message, 5))) == told

    reasoning, content, calls, reason, count, _ = told
    said = whole["sparkpair"]["token_ids"]
    assert len(said) == count <= limit
    written = b"".join(map(tokenizer.token_bytes, said)).decode("utf-8", "replace")
    letters = iter(written)
    assert all(letter in letters for letter in reasoning + content), "what is shown was said, in this order"
    assert len(calls) <= (written.count("<tool_call>") if parallel else 1)
    if not calls and stop is None and reason == "stop":
        hidden = [tokenizer.marker_ids[name] for name in ("</think>", "<|user|>")]
        shown = b"".join(tokenizer.token_bytes(token_id) for token_id in said if token_id not in hidden)
        assert (reasoning + content).replace("\n", "") == shown.decode("utf-8", "replace").replace("\n", "")
