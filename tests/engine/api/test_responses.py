# SPDX-License-Identifier: Apache-2.0
"""The Responses dialect: what is told streamed and not, what is stored, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from sparkpair.api import response_store

from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.scripted import FAIL, HOLD
from tests.engine.api.test_functions import ARGUMENTS, CALL, GOT, OPEN_CALL, OVER, THOUGHT, WEATHER

TOOL = {"type": "function", **WEATHER["function"]}
GET = {"type": "function", "name": "get", "parameters": None}


async def ask(server: Server, status: int = 200, **fields: Any) -> Any:
    """One unstreamed response, or the error object."""
    response = await server.http.post("/v1/responses", json={"model": MODEL, "input": "Hi", **fields})
    assert response.status_code == status, response.text
    return response.json() if status == 200 else response.json()["error"]


async def events_of(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed response; their names, numbers and items must be consistent."""
    response = await server.http.post("/v1/responses", json={"input": "Hi", "stream": True, **fields})
    assert response.headers["content-type"] == "text/event-stream"
    events = []
    for block in response.text.split("\n\n"):
        if block.startswith("event: "):
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def shape(response: dict[str, Any]) -> Any:
    """A response without what is new in every reply."""
    fixed = {key: value for key, value in response.items() if key not in ("id", "created_at", "completed_at", "output")}
    own = ("id", "call_id")
    return fixed, [{key: value for key, value in item.items() if key not in own} for item in response["output"]]


def prompt(server: Server) -> str:
    return b"".join(map(server.tokenizer.token_bytes, server.engine.last.prompt_ids)).decode()


async def test_response_has_an_item_for_each_part(server: Server) -> None:
    server.says(*THOUGHT, "Let me see.", *CALL, OVER)
    response = await ask(server, tools=[TOOL], metadata={"a": "b"}, instructions="Be brief.")
    reasoning, message, call = response["output"]
    assert (reasoning["type"], reasoning["content"]) == (
        "reasoning",
        [{"type": "reasoning_text", "text": "Need data."}],
    )
    assert message["content"] == [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", ARGUMENTS)
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert len({item["id"] for item in response["output"]}) == 3
    assert (response["status"], response["object"], response["model"]) == ("completed", "response", MODEL)
    assert (response["metadata"], response["instructions"], response["tools"]) == ({"a": "b"}, "Be brief.", [TOOL])
    assert response["usage"]["output_tokens"] == len(server.ids(*THOUGHT, "Let me see.", *CALL, OVER))
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": len(server.ids(*THOUGHT))}
    assert "<|system|>Be brief.<|user|>Hi" in prompt(server)


SCRIPTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "everything": ((*THOUGHT, "See.", *CALL, *GOT, "Done.", OVER), {"tools": [TOOL, GET]}),
    "answer": (("</think>", "Yes.", "<|user|>"), {}),
    "reasoning alone": (("Hm.", "<|user|>"), {}),
    "nothing": (("<|user|>",), {}),
    "cut": ((*THOUGHT, "one two three four"), {"max_output_tokens": 8}),
    "cut in a call": ((*THOUGHT, *GOT, *OPEN_CALL), {"tools": [TOOL, GET], "max_output_tokens": 12}),
}


@pytest.mark.parametrize(("script", "fields"), SCRIPTS.values(), ids=SCRIPTS)
async def test_stream_tells_the_unstreamed_response(
    server: Server, script: tuple[str, ...], fields: dict[str, Any]
) -> None:
    server.says(*script)
    whole = await ask(server, **fields)
    events = await events_of(server, **fields)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["output"] == []
    last = events[-1]
    assert last["type"] == f"response.{whole['status']}"
    assert shape(last["response"]) == shape(whole)
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == list(range(len(done)))
    assert [event["item"]["id"] for event in added] == [item["id"] for item in done]
    for item in done:
        deltas = "".join(event["delta"] for event in events if event.get("item_id") == item["id"] and "delta" in event)
        assert deltas == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


async def test_reply_without_an_answer_has_an_empty_message(server: Server) -> None:
    server.says("Hm.", "<|user|>")
    assert [item["type"] for item in (await ask(server))["output"]] == ["reasoning", "message"]


async def test_cut_reply_is_incomplete(server: Server) -> None:
    server.says(*THOUGHT, "one two three four")
    response = await ask(server, max_output_tokens=len(server.ids(*THOUGHT)) + 2)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


async def test_reply_that_fails(server: Server) -> None:
    server.engine.script = [server.ids("a"), FAIL]
    last = (await events_of(server))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "rank 1 left: it was killed"}
    assert (await ask(server, 500))["type"] == "server_error"


async def test_items_become_the_prompt_of_the_same_chat(server: Server) -> None:
    server.says(OVER)
    items = [
        {"role": "developer", "content": "D"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "so"}, {"type": "refusal", "refusal": "!"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"days": 2}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": None},
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "z"},
    ]
    await ask(server, input=items)
    assert prompt(server).partition("Max")[2] == (
        "<|system|>D<|user|>ab<|assistant|><think>why</think>so!<tool_call>weather<arg_key>days</arg_key><arg_value>2"
        "</arg_value></tool_call><|observation|><tool_response>4</tool_response><|assistant|><think></think>x"
        "<|assistant|><think></think>y<|user|>z<|assistant|><think>"
    )


class TestStore:
    async def test_conversation_goes_on_from_a_response(self, server: Server) -> None:
        server.says(*THOUGHT, *CALL, OVER)
        first = await ask(server, tools=[TOOL], instructions="Be brief.")
        seen = server.engine.last.prompt_ids + tuple(server.ids(*THOUGHT, *CALL, OVER))
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "4"}
        server.says("</think>", "Four.", OVER)
        more = {"tools": [TOOL], "instructions": "Be brief."}
        second = await ask(server, previous_response_id=first["id"], input=[output], **more)
        assert server.engine.last.prompt_ids[: len(seen)] == seen
        assert second["previous_response_id"] == first["id"]
        await ask(server, previous_response_id=second["id"], input="And?")
        assert "Be brief." not in prompt(server), "instructions are not carried on"
        assert "<tool_response>4</tool_response><|assistant|><think></think>Four.<|user|>And?" in prompt(server)

    async def test_stored_response_is_read_and_deleted(self, server: Server) -> None:
        server.says("</think>", "Yes.", "<|user|>")
        stream = await events_of(server)
        response = stream[-1]["response"]
        found = await server.openai.responses.retrieve(response["id"])
        assert found.output_text == "Yes."
        assert (await server.http.get(f"/v1/responses/{response['id']}")).json() == response
        assert (await server.http.delete(f"/v1/responses/{response['id']}")).json() == {
            "id": response["id"], "object": "response", "deleted": True,
        }  # fmt: skip
        for method in ("GET", "DELETE"):
            gone = await server.http.request(method, f"/v1/responses/{response['id']}")
            assert (gone.status_code, gone.json()["error"]["param"]) == (404, "response_id")
        error = await ask(server, 400, previous_response_id=response["id"])
        assert error["param"] == "previous_response_id"

    async def test_response_is_not_stored_when_the_client_says_so(self, server: Server) -> None:
        server.says("</think>", "Yes.", "<|user|>")
        response = await ask(server, store=False)
        assert response["store"] is False
        assert (await server.http.get(f"/v1/responses/{response['id']}")).status_code == 404

    async def test_item_reference_is_the_stored_item(self, server: Server) -> None:
        server.says("</think>", "Yes.", "<|user|>")
        message = (await ask(server))["output"][-1]
        reference = {"type": "item_reference", "id": message["id"]}
        await ask(server, input=[reference, {"role": "user", "content": "Why?"}])
        assert "</think>Yes.<|user|>Why?" in prompt(server)

    def test_newest_responses_are_kept_within_number_and_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(response_store, "MOST_RESPONSES", 3)
        store = response_store.ResponseStore()
        for number in range(3):
            response = {"id": f"r{number}", "output": [{"id": f"i{number}"}]}
            store.put(response, [number], f"r{number - 1}" if number else None, 20)
        assert store.conversation("r1") == [0, {"id": "i0"}, 1, {"id": "i1"}]
        store.put({"id": "r3", "output": []}, [], None, 20)
        assert store.get("r2") is None, "what a conversation used is newer"
        assert store.item("i2") is None
        monkeypatch.setattr(response_store, "MOST_BYTES", 50)
        store.put({"id": "r4", "output": []}, [], "r1", 40)
        assert store.conversation("r4") is None
        assert store.get("r4") is not None
        never_written_down = object()
        store.put({"id": "r5", "output": [{"id": "i5", "text": "x" * 10}]}, [never_written_down], None, 9)
        assert store.get("r5") is not None
        assert store.get("r4") is None, "what was asked and what was answered count"


ACCEPTED: list[dict[str, Any]] = [
    {"include": ["reasoning.encrypted_content"], "truncation": "disabled", "background": False, "conversation": None},
    {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": {"type": "text"}, "verbosity": "low"}},
    {"tools": [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}, {"type": "namespace"}, TOOL]},
    {
        "tools": [TOOL, GET],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get"}]},
    },
    {
        "stream_options": {"include_obfuscation": False},
        "prompt_cache_key": "x",
        "client_metadata": {},
        "max_tool_calls": 3,
    },
    {"input": [{"role": "user", "content": "Hi", "id": None, "status": None}], "user": "u", "service_tier": "auto"},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": ["Hi"]}, "input"),
    ({"input": [{"type": "item_reference", "id": "msg_unknown"}]}, "input"),
    ({"input": [{"type": "message", "role": "tool", "content": "x"}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": {}, "call_id": "c"}]}, "input"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input"),
    ({"input": "x " * 5000}, "input"),
    ({"max_output_tokens": True}, "max_output_tokens"),
    ({"max_output_tokens": 10**9}, "input"),
    ({"instructions": 5}, "instructions"),
    ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
    ({"reasoning": {"effort": "huge"}}, "reasoning"),
    ({"text": {"format": {"type": "xml"}}}, "text"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text"),
    ({"tools": ["f"]}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"include": ["everything"]}, "include"),
    ({"include": "reasoning.encrypted_content"}, "include"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"metadata": {"k": 5}}, "metadata"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ({"store": "yes"}, "store"),
    ({"model": "other"}, "model"),
    ({"temperature": "hot"}, "temperature"),
]


PLACES: list[tuple[dict[str, Any], str]] = [
    ({"text": {"format": {"type": "xml"}}}, "text.format.type: "),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format: "),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": []}}}, "text.format.schema: "),
    ({"tools": [{"type": "web_search"}, {"type": "function", "name": ""}]}, "tools[1]: "),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name: "),
    ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters: "),
    ({"input": [{"type": "function_call", "name": "", "arguments": "{}", "call_id": "c"}]}, "input[0].name: "),
    ({"input": [{"type": "function_call_output", "call_id": "", "output": "x"}]}, "input[0].call_id: "),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "ultra"}]}]},
     "input[0].content[0].detail: "),
]  # fmt: skip


async def test_what_clients_send_is_served(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    for fields in ACCEPTED:
        await ask(server, **fields)


async def test_every_bad_field_is_refused_by_its_name_here(server: Server) -> None:
    for fields, param in REFUSED:
        for stream in (False, True):
            status = 404 if param == "model" else 400
            error = await ask(server, status, stream=stream, **fields)
            assert error["param"] == param, (fields, error)
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"].lower().startswith(("the model", "this model", param.lower())), error
    for fields, place in PLACES:
        # Other indices than here would be those of the chat request that is made of this one.
        error = await ask(server, 400, instructions="Be brief.", **fields)
        assert error["message"].startswith(place), (fields, error)
        assert error["param"] == place.split(".")[0].split("[")[0]
    assert (await ask(server, 400, input="x " * 5000))["code"] == "context_length_exceeded"


async def test_official_client_accumulates_a_stream(serve: Serve) -> None:
    async with serve() as server:
        server.says(*THOUGHT, "Let me see.", *CALL, OVER)
        tools: Any = [TOOL]
        async with server.openai.responses.stream(model=MODEL, input="Hi", tools=tools) as stream:
            final = await stream.get_final_response()
        assert final.output_text == "Let me see."
        call = final.output[-1]
        assert isinstance(call, openai.types.responses.ResponseFunctionToolCall)
        assert call.arguments == ARGUMENTS
        assert final.usage is not None
        assert final.usage.output_tokens_details.reasoning_tokens == len(server.ids(*THOUGHT))


@pytest.mark.parametrize(
    ("path", "fields", "beat"),
    [
        ("/v1/responses", {"input": "Hi", "tools": [GET]}, ": keepalive"),
        (
            "/v1/messages",
            {
                "model": MODEL,
                "max_tokens": 100,
                "messages": [{"role": "user", "content": "Hi"}],
                "tools": [{"name": "get", "input_schema": {}}],
            },
            "event: ping",
        ),
    ],
)
async def test_stream_says_that_a_call_is_being_written(
    serve: Serve, path: str, fields: dict[str, Any], beat: str
) -> None:
    async with serve(call_beat_s=0.01, keepalive_s=0) as server:
        server.engine.script = [server.ids("</think>", *GOT[:2]), HOLD, server.ids(*GOT[2:], OVER)]
        beats = 0
        async with server.http.stream("POST", path, json={**fields, "stream": True}) as response:
            async for line in response.aiter_lines():
                beats += line == beat
                if beats == 3:
                    server.engine.replies[-1].go_on()
        assert beats >= 3
