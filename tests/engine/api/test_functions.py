# SPDX-License-Identifier: Apache-2.0
"""Functions on the chat route: offered, forced, called, cut, refused by nobody, and remembered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.scripted import HOLD

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
GET = {"type": "function", "function": {"name": "get"}}
TOOLS = [WEATHER, GET]
CITY = ("<arg_key>", "city", "</arg_key>", "<arg_value>", "Oslo", "</arg_value>")
OPEN_CALL = ("<tool_call>", "weather", *CITY, "<arg_key>", "days", "</arg_key>", "<arg_value>", "2", "</arg_value>")
CALL = (*OPEN_CALL, "</tool_call>")
GOT = ("<tool_call>", "get", "</tool_call>")
ARGUMENTS = '{"city":"Oslo","days":2}'
THOUGHT = ("Need data.", "</think>")
OVER = "<|observation|>"
SURE = 40
"""What the model would rather say."""


def deltas(response: Any) -> list[dict[str, Any]]:
    """The choices' deltas of a stream, each with its finish reason."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return [{**choice["delta"], "finish": choice["finish_reason"]} for choice in choices]


async def both(server: Server, **fields: Any) -> dict[str, Any]:
    """The choice of an unstreamed reply; the streamed one must say the same."""
    script = server.engine.script, list(server.engine.scripts)
    choice: dict[str, Any] = (await server.chat(**fields)).json()["choices"][0]
    server.engine.script, server.engine.scripts = script
    told = deltas(await server.chat(**fields, stream=True))
    message = choice["message"]
    for key in ("content", "reasoning_content"):
        assert "".join(delta.get(key, "") for delta in told) == (message.get(key) or "")
    calls = [call for delta in told for call in delta.get("tool_calls", ())]
    assert [call.pop("index") for call in calls] == list(range(len(calls)))
    assert [call["function"] for call in calls] == [call["function"] for call in message.get("tool_calls", [])]
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert told[-1] == {"finish": choice["finish_reason"]}
    return choice


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls", [])
    ]


async def test_calls_are_told_whole(server: Server) -> None:
    server.says(*THOUGHT, "\n\nLet me see.\n", *CALL, "\n", *GOT, OVER)
    choice = await both(server, tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see.\n"
    assert choice["message"]["reasoning_content"] == "Need data."
    assert calls_of(choice) == [("weather", ARGUMENTS), ("get", "{}")]
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2


async def test_content_is_null_beside_calls_alone(server: Server) -> None:
    server.says(*THOUGHT, "\n", *CALL, OVER)
    assert (await both(server, tools=TOOLS))["message"]["content"] is None


async def test_functions_are_shown_to_the_model(server: Server) -> None:
    server.says(OVER)
    await server.chat(tools=TOOLS)
    prompt = b"".join(map(server.tokenizer.token_bytes, server.engine.last.prompt_ids)).decode()
    assert '\n{"name": "get"}\n</tools>' in prompt
    assert "strict" not in prompt
    await server.chat(tools=TOOLS, tool_choice="none")
    prompt = b"".join(map(server.tokenizer.token_bytes, server.engine.last.prompt_ids)).decode()
    assert "<tools>" not in prompt


@pytest.mark.parametrize("fields", [{"tool_choice": "none", "tools": TOOLS}, {"tools": []}, {"tools": [WEATHER]}])
async def test_function_that_is_not_offered_is_text(server: Server, fields: dict[str, Any]) -> None:
    server.says(*THOUGHT, *GOT, OVER)
    choice = await both(server, **fields)
    assert choice["message"]["content"] == "".join(GOT)
    assert choice["finish_reason"] == "stop"


async def test_call_left_open_by_the_model_is_told_when_complete(server: Server) -> None:
    server.says(*THOUGHT, *OPEN_CALL, OVER)
    assert calls_of(await both(server, tools=TOOLS)) == [("weather", ARGUMENTS)]
    server.says(*THOUGHT, *OPEN_CALL[:-1], OVER)
    choice = await both(server, tools=TOOLS)
    assert choice["message"]["content"] == "".join(OPEN_CALL[:-1])
    assert choice["finish_reason"] == "stop"


async def test_call_that_the_limit_cuts_is_not_told(server: Server) -> None:
    server.says(*THOUGHT, *GOT, *OPEN_CALL)
    for length, found in (
        (len(server.ids(*THOUGHT, *GOT)) + 3, [("get", "{}")]),
        (len(server.ids(*THOUGHT, GOT[0])), []),
    ):
        choice = await both(server, tools=TOOLS, max_tokens=length)
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"] == (None if found else "")
        assert calls_of(choice) == found


async def test_limit_after_a_whole_call_does_not_hide_it(server: Server) -> None:
    server.says(*THOUGHT, *GOT, "and more")
    choice = await both(server, tools=TOOLS, max_tokens=len(server.ids(*THOUGHT, *GOT)) + 1)
    assert choice["finish_reason"] == "tool_calls"


async def test_call_in_the_think_block_counts_when_the_reply_ends_on_it(server: Server) -> None:
    server.says("Hm. ", *CALL, "</think>", OVER)
    choice = await both(server, tools=TOOLS)
    assert (calls_of(choice), choice["message"]["reasoning_content"]) == ([("weather", ARGUMENTS)], "Hm. ")
    server.says("Hm. ", *GOT, " no.", "</think>", "Hello", OVER)
    choice = await both(server, tools=TOOLS)
    assert (calls_of(choice), choice["finish_reason"]) == ([], "stop")
    assert choice["message"]["reasoning_content"] == "Hm. " + "".join(GOT) + " no."


async def test_one_call_at_most_unless_parallel(server: Server) -> None:
    server.says(*THOUGHT, *GOT, *CALL, OVER)
    body = (await server.chat(tools=TOOLS, parallel_tool_calls=False)).json()
    assert calls_of(body["choices"][0]) == [("get", "{}")]
    assert body["usage"]["completion_tokens"] == len(server.ids(*THOUGHT, *GOT, *CALL, OVER))
    await both(server, tools=TOOLS, parallel_tool_calls=False)


async def test_stop_string_inside_a_call_gives_no_call(server: Server) -> None:
    server.says(*THOUGHT, *CALL, OVER)
    choice = await both(server, tools=TOOLS, stop=["slo"])
    assert choice["message"]["content"] == "".join(OPEN_CALL[:6]) + "O"
    choice = await both(server, tools=TOOLS, stop=["arg_value>Os"])
    assert choice["message"]["content"] == "".join(OPEN_CALL[:5]) + "<"
    assert choice["finish_reason"] == "stop"


class TestForced:
    async def test_answer_without_thinking_begins_with_the_call(self, server: Server) -> None:
        opening = server.ids(*OPEN_CALL[:2])
        server.says(*[SURE] * len(opening), *OPEN_CALL[2:], "</tool_call>", OVER)
        choice = await both(server, tools=[WEATHER], tool_choice="required", reasoning_effort="none")
        assert calls_of(choice) == [("weather", ARGUMENTS)]

    async def test_answer_after_thinking_begins_with_the_call(self, server: Server) -> None:
        named = {"type": "function", "function": {"name": "weather"}}
        opening = server.ids(*OPEN_CALL[:2])
        server.says(*THOUGHT, "\n\n", *[SURE] * len(opening), *OPEN_CALL[2:], "</tool_call>", OVER)
        choice = await both(server, tools=TOOLS, tool_choice=named)
        assert calls_of(choice) == [("weather", ARGUMENTS)]
        prompt = b"".join(map(server.tokenizer.token_bytes, server.engine.last.prompt_ids)).decode()
        assert '"weather"' in prompt
        assert '"get"' not in prompt

    async def test_model_that_calls_by_itself_is_not_interrupted(self, server: Server) -> None:
        server.says(*THOUGHT, *CALL, OVER)
        choice = await both(server, tools=TOOLS, tool_choice="required")
        assert calls_of(choice) == [("weather", ARGUMENTS)]
        assert len(server.engine.replies) == 2, "one for each of the two requests"

    async def test_usage_and_figures_are_those_of_one_reply(self, server: Server) -> None:
        server.says(*THOUGHT, *[SURE] * len(server.ids(*GOT[:2])), *GOT[2:], OVER)
        body = (await server.chat(tools=[GET], tool_choice="required", return_token_ids=True)).json()
        ids = server.ids(*THOUGHT, *GOT, OVER)
        assert body["sparkpair"]["token_ids"] == ids
        assert body["usage"]["completion_tokens"] == len(ids)
        assert body["usage"]["prompt_tokens"] == len(server.engine.replies[0].request.prompt_ids)
        assert body["sparkpair"]["prefill_s"] == 0.25
        assert calls_of(body["choices"][0]) == [("get", "{}")]

    async def test_forced_call_that_does_not_fit_ends_at_the_limit(self, server: Server) -> None:
        server.says(*THOUGHT, "No")
        ids = server.ids(*THOUGHT)
        choice = await both(server, tools=[WEATHER], tool_choice="required", max_tokens=len(ids) + 1)
        assert choice["finish_reason"] == "length"
        choice = await both(server, tools=[WEATHER], tool_choice="required", max_tokens=1, reasoning_effort="none")
        assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")

    async def test_forced_call_that_goes_wrong_is_text(self, server: Server) -> None:
        server.says(*[SURE] * len(server.ids(*GOT[:2])), "</arg_key>", OVER)
        choice = await both(server, tools=[GET], tool_choice="required", reasoning_effort="none")
        assert choice["message"]["content"] == "<tool_call>get</arg_key>"


async def test_thinking_budget_closes_the_think_block(server: Server) -> None:
    closing = server.ids("\n", "</think>", "\n\n")
    server.says("one two three", *[SURE] * len(closing), "So.", "<|user|>")
    choice = await both(server, thinking_budget=len(server.ids("one two three")) + 1)
    assert choice["message"]["reasoning_content"] == "one two three\n"
    assert choice["message"]["content"] == "So."


async def test_thinking_budget_leaves_alone_what_keeps_it(server: Server) -> None:
    server.says(*THOUGHT, "Yes.", "<|user|>")
    for fields in ({"thinking_budget": len(server.ids(*THOUGHT))}, {"thinking_budget": 0}, {"thinking_budget": None}):
        assert (await both(server, **fields))["message"]["content"] == "Yes."
    assert len(server.engine.replies) == 6


async def test_stream_says_that_a_call_is_being_written(serve: Serve) -> None:
    async with serve(call_beat_s=0.01, keepalive_s=0) as server:
        server.engine.script = [server.ids(*THOUGHT, *CALL[:6]), HOLD, server.ids(*CALL[6:], OVER)]
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "stream": True}
        async with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            beats = 0
            kinds = []
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                    kinds.append(next(iter(delta), ""))
                    beats += not delta
                    if beats == 3:
                        server.engine.replies[-1].go_on()
        first_beat = kinds.index("")
        assert kinds[first_beat : first_beat + 3] == [""] * 3
        assert kinds[-2:] == ["tool_calls", ""]
        assert set(kinds[:first_beat]) == {"role", "reasoning_content"}


async def test_dropped_reasoning_is_put_back(server: Server) -> None:
    server.says(*THOUGHT, *CALL, OVER)
    message = (await server.chat(tools=TOOLS)).json()["choices"][0]["message"]
    del message["reasoning_content"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "4"}
    history = [{"role": "user", "content": "Hi"}, message, result]
    seen = server.engine.last.prompt_ids + tuple(server.ids(*THOUGHT, *CALL, OVER))
    await server.chat(messages=history, tools=TOOLS)
    assert server.engine.last.prompt_ids[: len(seen)] == seen
    tokens = (await server.http.post("/tokenize", json={"messages": history, "tools": TOOLS})).json()["tokens"]
    assert tuple(tokens) == server.engine.last.prompt_ids


async def test_history_with_a_broken_call_goes_on(server: Server) -> None:
    for arguments in ('{"path": "', "[1,2]", "oops", '"x"'):
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "gone"},
            {"role": "user", "content": "Go on"},
        ]
        server.says("</think>", "Yes.", OVER)
        assert (await both(server, messages=messages, tools=TOOLS))["message"]["content"] == "Yes."


async def test_result_without_a_call_is_refused_with_its_place(server: Server) -> None:
    response = await server.chat(messages=[{"role": "user", "content": "Hi"}, {"role": "tool", "content": "x"}])
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("messages[1].tool_call_id:")


@pytest.mark.parametrize("marker", ["<|assistant|>", "<|system|>", "<|user|>", "<|observation|>"])
async def test_marker_that_begins_a_turn_ends_the_reply_and_is_not_shown(server: Server, marker: str) -> None:
    server.says(*THOUGHT, "Yes.", marker, "<think>", "Again.")
    choice = await both(server, tools=TOOLS)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes.", "stop")
