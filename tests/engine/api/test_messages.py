# SPDX-License-Identifier: Apache-2.0
"""The Messages dialect: what is told streamed and not, what its prompt is, and what is refused in its own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.scripted import FAIL
from tests.engine.api.test_functions import CALL, GOT, OPEN_CALL, OVER, THOUGHT, WEATHER

SCHEMA = WEATHER["function"]["parameters"]
TOOL = {"name": "weather", "description": "W", "input_schema": SCHEMA, "eager_input_streaming": True}
GET = {"type": "custom", "name": "get", "input_schema": {"type": "object"}}
THINK = {"thinking": {"type": "adaptive"}}
HI = {"role": "user", "content": "Hi"}
TWO = [{"type": "text", "text": "2"}]
PATH = "/v1/messages?beta=true"


async def ask(server: Server, status: int = 200, **fields: Any) -> Any:
    """One unstreamed message, or the error object."""
    body = {"model": MODEL, "max_tokens": 100, "messages": [HI], **fields}
    response = await server.http.post(PATH, json=body)
    assert response.status_code == status, response.text
    if status == 200:
        return response.json()
    answer = response.json()
    assert answer["type"] == "error"
    assert answer["request_id"] == response.headers["request-id"]
    assert set(answer["error"]) == {"type", "message"}
    return answer["error"]


async def events_of(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed message."""
    body = {"model": MODEL, "max_tokens": 100, "messages": [HI], "stream": True, **fields}
    response = await server.http.post(PATH, json=body)
    assert response.headers["content-type"] == "text/event-stream"
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream."""
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = {**events[0]["message"], "content": []}
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(dict(event["content_block"]))
        block = message["content"][-1]
        assert event["index"] == len(message["content"]) - 1
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                block["input"] = json.loads(delta["partial_json"])
            else:
                key = delta["type"].removesuffix("_delta")
                block[key] += delta[key]
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def shape(message: dict[str, Any]) -> Any:
    """A message without what is new in every reply."""
    fixed = {key: value for key, value in message.items() if key not in ("id", "sparkpair", "content")}
    return fixed, [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]


def prompt(server: Server) -> str:
    return b"".join(map(server.tokenizer.token_bytes, server.engine.last.prompt_ids)).decode()


SCRIPTS: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "everything": ((*THOUGHT, "See.", *CALL, *GOT, "Done.", OVER), {"tools": [TOOL, GET], **THINK}, "tool_use"),
    "answer": (("Yes.", "<|user|>"), {}, "end_turn"),
    "nothing": (("<|user|>",), {}, "end_turn"),
    "stopped": (("one two three",), {"stop_sequences": ["two"]}, "stop_sequence"),
    "cut": (("one two three four",), {"max_tokens": 2}, "max_tokens"),
    "cut in a call": ((*GOT, *OPEN_CALL), {"tools": [TOOL, GET], "max_tokens": 6}, "max_tokens"),
}


@pytest.mark.parametrize(("script", "fields", "reason"), SCRIPTS.values(), ids=SCRIPTS)
async def test_stream_tells_the_unstreamed_message(
    server: Server, script: tuple[str, ...], fields: dict[str, Any], reason: str
) -> None:
    server.says(*script)
    whole = await ask(server, **fields)
    assert whole["stop_reason"] == reason
    assert whole["stop_sequence"] == ("two" if reason == "stop_sequence" else None)
    assert shape(folded(await events_of(server, **fields))) == shape(whole)


async def test_message_has_a_block_for_each_part(serve: Serve) -> None:
    async with serve(engine={"cached": 5}) as server:
        server.says(*THOUGHT, "See.", *CALL, OVER)
        message = await ask(server, tools=[TOOL], **THINK)
        thinking, text, call = message["content"]
        assert thinking == {"type": "thinking", "thinking": "Need data.", "signature": ""}
        assert text == {"type": "text", "text": "See."}
        assert call == {"type": "tool_use", "id": call["id"], "name": "weather", "input": {"city": "Oslo", "days": 2}}
        usage = message["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(server.engine.last.prompt_ids)
        assert usage["cache_read_input_tokens"] == 5
        assert usage["output_tokens"] == len(server.ids(*THOUGHT, "See.", *CALL, OVER))


async def test_thinking_is_off_unless_asked_for(server: Server) -> None:
    server.says(OVER)
    for fields, end in (
        ({}, "</think>"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "</think>"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "<think>"),
        ({"thinking": {"type": "enabled", "budget_tokens": 50}}, "<think>"),
    ):
        await ask(server, **fields)
        assert prompt(server).endswith(end)
        assert ("Effort: High" in prompt(server)) == (end == "<think>" and "output_config" in fields)


async def test_thinking_budget_closes_the_think_block(server: Server) -> None:
    closing = server.ids("\n", "</think>", "\n\n")
    server.says("one two", *["x"] * len(closing), "So.", OVER)
    message = await ask(server, thinking={"type": "enabled", "budget_tokens": len(server.ids("one two")) + 1})
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert [message["content"][0]["thinking"], message["content"][1]["text"]] == ["one two\n", "So."]


async def test_blocks_become_the_prompt_of_the_same_chat(server: Server) -> None:
    server.says(OVER)
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}],
        },
        {"role": "system", "content": [{"type": "text", "text": "S"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "why", "signature": "x"},
                {"type": "text", "text": "so"},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"days": 2}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "go on"},
                {"type": "tool_result", "tool_use_id": "c2", "content": TWO, "is_error": True},
                {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
            ],
        },
    ]
    await ask(server, messages=messages, system=[{"type": "text", "text": "A"}, {"type": "text", "text": "B"}])
    assert prompt(server) == (
        "[gMASK]<sop><|system|>A\n\nB<|user|>ab<|system|>S<|assistant|><think>why</think>so<tool_call>weather<arg_key>days"
        "</arg_key><arg_value>2</arg_value></tool_call><tool_call>weather</tool_call><|observation|><tool_response>1"
        "</tool_response><tool_response>Error: 2</tool_response><|user|>go on<|assistant|><think></think>"
    )


async def test_billing_line_has_no_effect_on_the_prompt(server: Server) -> None:
    server.says(OVER)
    await ask(server, system=[{"type": "text", "text": "Be brief."}])
    expected = server.engine.last.prompt_ids
    for number in range(2):
        line = f"x-anthropic-billing-header: cc_version=1.2; cch={number};"
        await ask(server, system=[{"type": "text", "text": line}, {"type": "text", "text": "Be brief."}])
        assert server.engine.last.prompt_ids == expected
        await ask(server, system=f"{line}\nBe brief.")
        assert server.engine.last.prompt_ids == expected
    await ask(server, system=line)
    assert "billing" not in prompt(server)


async def test_count_equals_the_prompt_that_the_same_body_runs(server: Server) -> None:
    server.says(OVER)
    for fields in ({}, {"tools": [TOOL], "system": "S"}, THINK, {"tools": [TOOL], "tool_choice": {"type": "none"}}):
        message = await ask(server, **fields)
        for limit in ({}, {"max_tokens": 5}):
            body = {"model": MODEL, "messages": [HI], **limit, **fields}
            counted = (await server.http.post("/v1/messages/count_tokens?beta=true", json=body)).json()
            assert counted == {"input_tokens": message["usage"]["input_tokens"]}
    assert (await server.http.post("/v1/messages/count_tokens", json={"model": MODEL})).status_code == 400


async def test_choice_of_functions(server: Server) -> None:
    server.says(*CALL, *CALL, OVER)
    both = {"tools": [TOOL, GET]}
    assert len((await ask(server, **both, tool_choice={"type": "auto"}))["content"]) == 2
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert len((await ask(server, **both, tool_choice=one))["content"]) == 1
    assert (await ask(server, **both, tool_choice={"type": "none"}))["stop_reason"] == "end_turn"
    server.says(*["x"] * len(server.ids("<tool_call>", "get")), "</tool_call>", OVER)
    message = await ask(server, **both, tool_choice={"type": "tool", "name": "get"})
    assert [block["name"] for block in message["content"]] == ["get"]
    server.says("x", "get", "</tool_call>", OVER)
    message = await ask(server, **both, tool_choice={"type": "any"})
    assert message["stop_reason"] == "tool_use"


async def test_stream_that_fails_ends_with_an_error_event(server: Server) -> None:
    server.engine.script = [server.ids("a"), FAIL]
    last = (await events_of(server))[-1]
    assert last["error"] == {"type": "api_error", "message": "rank 1 left: it was killed"}
    assert (await ask(server, 500))["type"] == "api_error"
    server.engine.error = "rank 1 left"
    assert (await ask(server, 503))["type"] == "overloaded_error"


ACCEPTED: list[dict[str, Any]] = [
    {"metadata": {"user_id": "u"}, "service_tier": "auto", "speed": "fast", "diagnostics": {}, "inference_geo": "x"},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    {"context_management": None, "tools": [{"type": "web_search_20250305", "name": "web_search"}, TOOL]},
    {"top_k": 5, "temperature": 0, "top_p": 1, "seed": 3, "draft": False, "stop_sequences": []},
    {"messages": [HI, {"role": "assistant", "content": []}, {"role": "user", "content": []}]},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model:"),
    ({"model": ""}, "model:"),
    ({"max_tokens": None}, "max_tokens:"),
    ({"max_tokens": 0}, "max_tokens:"),
    ({"messages": []}, "messages:"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role:"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content:"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]:"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]}, "messages[0].content[0]:"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "messages[0]"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]}]}, "messages[0]"),
    ({"system": 5}, "system:"),
    ({"system": [{"type": "image"}]}, "system[0]:"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema:"),
    ({"tool_choice": {"type": "any"}}, "tool_choice:"),
    ({"tool_choice": {"type": "tool", "name": "f"}, "tools": [TOOL]}, "tool_choice:"),
    ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type:"),
    ({"stop_sequences": "x"}, "stop_sequences:"),
    ({"stop_sequences": [""]}, "stop_sequences:"),
    ({"thinking": {"type": "sometimes"}}, "thinking.type:"),
    ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens:"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens:"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort:"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format:"),
    ({"output_config": {"format": {"type": "json_schema", "schema": []}}}, "output_config.format.schema:"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type:"),
    ({"system": "Be brief.", "tools": [{"type": "web_search_20250305", "name": "w"}, {"name": "", "input_schema": {}}]},
     "tools[1]:"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name:"),
    ({"system": "Be brief.", "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": ""}]}]},
     "messages[0].content[0].tool_use_id:"),
    ({"messages": [HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "", "input": {}}]}]},
     "messages[1].content[0].name:"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management:"),
    ({"container": "c"}, "container:"),
    ({"mcp_servers": [{}]}, "mcp_servers:"),
    ({"service_tier": "standard_only"}, "service_tier:"),
    ({"temperature": "hot"}, "temperature:"),
    ({"stream": "yes"}, "stream:"),
]  # fmt: skip


async def test_what_clients_send_is_served(server: Server) -> None:
    server.says("Yes.", OVER)
    for fields in ACCEPTED:
        await ask(server, **fields)


async def test_every_bad_field_is_refused_in_this_dialect(server: Server) -> None:
    for fields, beginning in REFUSED:
        for stream in (False, True):
            error = await ask(server, 400, **{"stream": stream, **fields})
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith(beginning), (fields, error)


async def test_errors_of_the_route_have_the_words_that_clients_look_for(server: Server) -> None:
    long = [{"role": "user", "content": "x " * 5000}]
    message = (await ask(server, 400, messages=long))["message"]
    assert message == f"prompt is too long: {message.split()[4]} tokens > 4096 maximum"
    message = (await ask(server, 400, max_tokens=4096))["message"]
    assert message.startswith("input length and `max_tokens` exceed context limit: ")
    assert (await ask(server, 404, model="other"))["type"] == "not_found_error"
    for method, path, status, kind in (
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/messages/batches", 404, "not_found_error"),
    ):
        response = await server.http.request(method, path, json={})
        assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
    response = await server.http.post(PATH, content=b"[")
    assert response.json()["error"]["type"] == "invalid_request_error"
