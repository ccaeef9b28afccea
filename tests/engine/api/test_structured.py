# SPDX-License-Identifier: Apache-2.0
"""Answers with a form, over a real socket: every field that asks for one, what is refused, and what happens in the end.

The scripted model wants to say the script; where the form forbids a token it says the first one that is allowed.
"""

from __future__ import annotations

import asyncio
import enum
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import anthropic
import httpx
import jsonschema
import openai
import pydantic
import pytest
import pytest_asyncio

from tests.engine.api.conftest import MODEL, Serve, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

OVER = "<|observation|>"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
SAID = '{"city":"Oslo","days":2}'
GET = {"type": "function", "function": {"name": "get"}}
GO = {"type": "function", "function": {"name": "get_weather"}}
HI = [{"role": "user", "content": "Hi"}]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(serve: Serve) -> AsyncIterator[Server]:
    """One server for all: the process that tries forms takes seconds to start."""
    async with serve(form_cpu_s=3) as running:
        running.http.timeout = httpx.Timeout(100)
        yield running


def strict(schema: Any = SCHEMA) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "trip", "strict": True, "schema": schema}}


FIELDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "json_schema": ({"response_format": strict()}, SAID, SAID),
    "schema in a string": ({"response_format": strict(json.dumps(SCHEMA))}, SAID, SAID),
    "any value": ({"response_format": strict(True)}, "[1, null]", "[1, null]"),
    "json_object": ({"response_format": {"type": "json_object"}}, '{"a": [1]}', '{"a": [1]}'),
    "no array for json_object": ({"response_format": {"type": "json_object"}}, "[1]", '{"'),
    "guided_json": ({"guided_json": SCHEMA}, SAID, SAID),
    "guided_json corrects": ({"guided_json": SCHEMA}, '{"city":"Oslo","days":0}', '{"city":"Oslo","days":1}'),
    "guided_regex": ({"guided_regex": "a+b{2}"}, "aaabb", "aaabb"),
    "guided_choice": ({"guided_choice": ["yes", "no", "\n\"maybe\" é"]}, "\n\"maybe\" é", "\n\"maybe\" é"),
    "guided_grammar": ({"guided_grammar": 'root ::= "(" root ")" | "x"'}, "((x))", "((x))"),
    "structured json": ({"structured_outputs": {"json": SCHEMA, "regex": None}}, SAID, SAID),
    "structured regex": ({"structured_outputs": {"regex": "[0-9]{3}"}}, "1234", "123"),
    "structured choice": ({"structured_outputs": {"choice": ["left", "right"]}}, "right", "right"),
    "structured grammar": ({"structured_outputs": {"grammar": 'root ::= "a" | "b"'}}, "b", "b"),
    "structured object": ({"structured_outputs": {"json_object": True, "json": False}}, "{}", "{}"),
    "the first of several": ({"guided_choice": ["no"], "guided_regex": "yes", "response_format": {"type": "text"}},
                             "yes", "yes"),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
async def test_every_field_leads_the_answer_behind_the_think_block(shared: Server, name: str) -> None:
    fields, wanted, expected = FIELDS[name]
    shared.says('No {"form"} here: yes.', "</think>", wanted, OVER)
    choice = (await shared.chat(**fields)).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == 'No {"form"} here: yes.'
    assert choice["message"]["content"].startswith(expected)
    if wanted == expected:
        assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
    streamed = await shared.chat(**fields, stream=True)
    lines = [line[6:] for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]
    shared.says(wanted, OVER)
    unthought = await shared.chat(**fields, reasoning_effort="none")
    assert unthought.json()["choices"][0]["message"]["content"] == choice["message"]["content"]
    raw = await shared.http.post("/v1/completions", json={"model": MODEL, "prompt": "x", **fields})
    assert raw.json()["choices"][0]["text"] == choice["message"]["content"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format", "expected text, json_object or json_schema"),
    ({"response_format": {"schema": {}}}, "response_format", "expected text, json_object or json_schema"),
    ({"response_format": []}, "response_format", "expected an object"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "expected an object with a schema"),
    ({"response_format": strict(None)}, "response_format", "expected an object with a schema"),
    ({"response_format": strict([])}, "response_format", "expected a JSON schema"),
    ({"response_format": strict("{")}, "response_format", "a string that is not JSON"),
    ({"response_format": strict(False)}, "response_format", "expected a JSON schema"),
    ({"response_format": strict({"type": "sting"})}, "response_format", "'sting' is not valid"),
    ({"response_format": strict({"type": "string", "minLength": "2"})}, "response_format", "minLength: '2' is not of"),
    ({"response_format": strict({"$ref": "#"})}, "response_format", "allows no way to go on"),
    ({"response_format": strict({"$ref": "https://example.com/s"})}, "response_format", "$ref 'https://example.com/s'"),
    ({"response_format": strict({"allOf": [{}, {}]})}, "response_format", "allOf with several members"),
    ({"response_format": strict({"type": "integer", "minimum": 3, "maximum": 2})}, "response_format", "minimum"),
    ({"guided_json": 1}, "guided_json", "expected a JSON schema"),
    ({"guided_json": {"type": "string", "pattern": "a(?!b)"}}, "guided_json", "ookahead"),
    ({"guided_json": {"enum": ["x" * 200_000]}}, "guided_json", "at most 131072 characters"),
    ({"guided_json": " " * 2_000_000}, "guided_json", "at most 1048576 characters"),
    ({"guided_regex": ""}, "guided_regex", "a non-empty string"),
    ({"guided_regex": ["a"]}, "guided_regex", "a non-empty string"),
    ({"guided_regex": "a(?=b)"}, "guided_regex", "Lookahead is not supported"),
    ({"guided_regex": "("}, "guided_regex", "error"),
    ({"guided_choice": []}, "guided_choice", "a non-empty list of non-empty strings"),
    ({"guided_choice": ["a", ""]}, "guided_choice", "a non-empty list of non-empty strings"),
    ({"guided_choice": "a"}, "guided_choice", "a non-empty list of non-empty strings"),
    ({"guided_choice": ["a"] * 5000}, "guided_choice", "at most 4096 choices"),
    ({"guided_grammar": 'start ::= "a"'}, "guided_grammar", "root"),
    ({"guided_grammar": {}}, "guided_grammar", "a non-empty string"),
    ({"structured_outputs": "json"}, "structured_outputs", "expected an object"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs", "not supported by this engine"),
    ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}}, "structured_outputs", "not supported"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "expected one of json"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs", "expected true or false"),
    ({"guided_regex": "a", "tools": [GET], "tool_choice": "required"}, "guided_regex", "a form and be a call"),
    (
        {"response_format": strict(), "tools": [GET], "tool_choice": {"type": "function", "function": {"name": "get"}}},
        "response_format",
        "a form and be a call",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED)
async def test_what_cannot_be_kept_to_is_refused_by_name(
    shared: Server, fields: dict[str, Any], param: str, message: str
) -> None:
    before = len(shared.engine.replies)
    for stream in (False, True):
        response = await shared.chat(**fields, stream=stream)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
        assert error["message"].startswith(param)
        assert message in error["message"]
        assert "/project/" not in error["message"]
    assert len(shared.engine.replies) == before


async def test_members_that_are_null_ask_for_nothing(shared: Server) -> None:
    shared.says("</think>", "Hello", OVER)
    fields = {"response_format": None, "guided_json": None, "structured_outputs": {"json": None, "json_object": False}}
    assert (await shared.chat(**fields)).json()["choices"][0]["message"]["content"] == "Hello"


async def test_cut_answer_ends_with_length(shared: Server) -> None:
    shared.says("</think>", SAID, OVER)
    choice = (await shared.chat(response_format=strict(), max_tokens=5)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert SAID.startswith(choice["message"]["content"])


async def test_think_block_cannot_end_the_reply_and_its_budget_closes_it(shared: Server) -> None:
    closing = len(shared.ids("\n", "</think>"))
    shared.says("Hm.", OVER, *["x"] * (closing - 1), SAID, OVER)
    message = (await shared.chat(response_format=strict())).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.\n", SAID)
    shared.says("one two three", *["x"] * closing, SAID, OVER)
    budget = len(shared.ids("one two three")) + 1
    body = (await shared.chat(response_format=strict(), thinking_budget=budget, return_token_ids=True)).json()
    assert body["choices"][0]["message"]["content"] == SAID
    assert body["sparkpair"]["token_ids"][:-1] == shared.ids("one two three", "\n", "</think>", SAID)


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 40}])
async def test_answer_that_is_complete_is_over(shared: Server, fields: dict[str, Any]) -> None:
    shared.says("</think>", SAID, "more", "and", "more")
    choice = (await shared.chat(response_format=strict(), **fields)).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (SAID, "stop")


async def test_stop_string_cuts_an_answer_with_a_form(shared: Server) -> None:
    shared.says("</think>", SAID, OVER)
    choice = (await shared.chat(guided_json={**SCHEMA, "not": {"const": 1}}, stop=['lo","'])).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"city":"Os', "stop")


async def test_offered_functions_are_not_called_from_within_a_form(shared: Server) -> None:
    shared.says("</think>", "<tool_call>", '{"city":"Rome","days":1}', OVER)
    choice = (await shared.chat(response_format=strict(), tools=[GET])).json()["choices"][0]
    assert "tool_calls" not in choice["message"]
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


async def test_what_the_grammar_cannot_keep_is_checked_in_the_end(shared: Server) -> None:
    shared.says("</think>", "[1,2]", OVER)
    assert (await shared.chat(guided_json=UNIQUE)).json()["choices"][0]["message"]["content"] == "[1,2]"
    shared.says("</think>", "[1,1]", OVER)
    response = await shared.chat(guided_json=UNIQUE)
    assert (response.status_code, response.headers["x-should-retry"]) == (500, "false")
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("server_error", "guided_json")
    assert "[1, 1] has non-unique elements" in error["message"]
    told = (await shared.chat(guided_json=UNIQUE, stream=True)).text
    assert "has non-unique elements" in told
    assert 'finish_reason":"stop' not in told
    assert told.endswith("data: [DONE]\n\n")
    form = {"type": "json_schema", "name": "n", "schema": UNIQUE}
    response = await shared.http.post("/v1/responses", json={"model": MODEL, "input": "Hi", "text": {"format": form}})
    assert response.json()["error"]["message"].startswith("text.format: the answer came to its end")
    assert response.json()["error"]["param"] == "text"
    # What did not come to its end is not checked.
    assert (await shared.chat(guided_json=UNIQUE, max_tokens=4)).json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("wanted", ["get_weather", "get"])
async def test_required_call_of_a_function_on_offer_is_left_alone(shared: Server, wanted: str) -> None:
    shared.says("</think>", "x", wanted, "</tool_call>", OVER)
    choice = (await shared.chat(tools=[GET, GO], tool_choice="required")).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == [wanted]


async def test_required_call_cannot_be_of_another_function(shared: Server) -> None:
    shared.says("</think>", *["x"] * 30, OVER)
    message = (await shared.chat(tools=[GET, GO], tool_choice="required")).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] in ("get", "get_weather")


async def test_too_many_names_of_functions_are_refused(serve: Serve) -> None:
    tools = [{"type": "function", "function": {"name": f"{'f' * 55}{number}"}} for number in range(4000)]
    async with serve(engine={"context_length": 1 << 20}) as server:
        response = await server.chat(tools=tools, tool_choice="required")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools")
    assert "characters" in error["message"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(pydantic.BaseModel):
    kind: Literal["wheel", "door"]
    size: int | None
    colours: list[Colour]


class Car(pydantic.BaseModel):
    """What a client declares."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=8)
    doors: int = pydantic.Field(ge=2, le=5)
    electric: bool
    parts: list[Part] = pydantic.Field(min_length=1, max_length=3)


CAR = Car(name="Zoé", doors=4, electric=True, parts=[Part(kind="door", size=None, colours=[Colour.RED])])


class TestOfficialClients:
    async def test_openai_parses_a_model(self, shared: Server) -> None:
        shared.says("A car.", "</think>", CAR.model_dump_json(), OVER)
        parsed = await shared.openai.chat.completions.parse(model=MODEL, messages=HI, response_format=Car)
        assert parsed.choices[0].message.parsed == CAR
        async with shared.openai.chat.completions.stream(model=MODEL, messages=HI, response_format=Car) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == CAR

    async def test_openai_says_that_an_answer_was_cut(self, shared: Server) -> None:
        shared.says("A car.", "</think>", CAR.model_dump_json(), OVER)
        with pytest.raises(openai.LengthFinishReasonError):
            await shared.openai.chat.completions.parse(model=MODEL, messages=HI, response_format=Car, max_tokens=9)

    async def test_openai_responses_parse_a_model(self, shared: Server) -> None:
        shared.says("A car.", "</think>", CAR.model_dump_json(), OVER)
        response = await shared.openai.responses.parse(model=MODEL, input="Hi", text_format=Car)
        assert response.output_parsed == CAR
        wrong: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "sting"}}}
        with pytest.raises(openai.BadRequestError) as refused:
            await shared.openai.responses.create(model=MODEL, input="Hi", text=wrong)
        assert refused.value.param == "text"
        assert refused.value.message.count("text.format") == 1

    async def test_openai_sends_fields_of_other_servers(self, shared: Server) -> None:
        shared.says("</think>", "yes", OVER)
        for extra in ({"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}):
            reply = await shared.openai.chat.completions.create(model=MODEL, messages=HI, extra_body=extra)  # type: ignore[call-overload]
            assert reply.choices[0].message.content == "yes"

    async def test_anthropic_parses_a_model(self, shared: Server) -> None:
        shared.says(CAR.model_dump_json(), OVER)
        async with anthropic.AsyncAnthropic(base_url=shared.url, api_key="none", max_retries=0) as client:
            parsed = await client.messages.parse(model=MODEL, max_tokens=500, messages=HI, output_format=Car)  # type: ignore[arg-type]
            assert parsed.parsed_output == CAR
            wrong: Any = {"format": {"type": "json_schema", "schema": {"type": "sting"}}}
            with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format.*sting"):
                await client.messages.create(model=MODEL, max_tokens=5, messages=HI, output_config=wrong)  # type: ignore[arg-type]


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "true" + "}" * depth


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": {"guided_json": nested(66)},
    "deeper than the parser goes": {"guided_json": nested(50_000)},
    "huge": {"guided_json": {"enum": ["x" * 200_000]}},
    "many parts": {"guided_json": {"anyOf": [{"minimum": number} for number in range(4001)]}},
    "many values": {"guided_json": {"enum": list(range(5001))}},
    "endless reference": {"guided_json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                                          "$ref": "#/$defs/a"}},
    "catastrophic regex": {"guided_regex": "a?" * 1200 + "a" * 1200},
    "nested repeats": {"guided_regex": "(" * 1300 + "a" + "{1,9})" * 1300},
    "deep regex": {"guided_regex": "(" * 8000 + ")" * 8000},
    "long regex": {"guided_regex": "a" * 20_000},
    "no character": {"guided_regex": "\x00"},
    "grammar without an end": {"guided_grammar": "root ::= root"},
}  # fmt: skip


async def test_hostile_forms_are_refused_while_streams_go_on(shared: Server) -> None:
    longest, asked = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while asked:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - before)

    watching = asyncio.create_task(watch())
    responses = await asyncio.gather(*(shared.chat(**fields) for fields in HOSTILE.values()))
    asked = False
    await watching
    statuses = {name: response.status_code for name, response in zip(HOSTILE, responses, strict=True)}
    assert statuses == dict.fromkeys(HOSTILE, 400)
    for name, response in zip(HOSTILE, responses, strict=True):
        [param] = HOSTILE[name]
        assert response.json()["error"]["param"] == param
        # It is remembered, so that the same again costs nothing.
        assert (await shared.chat(**HOSTILE[name])).json() == response.json()
    # The machine may be busy; a compiler in the event loop would hold it for seconds.
    assert longest < 1.0
    shared.says("</think>", SAID, OVER)
    assert (await shared.chat(guided_json=SCHEMA)).json()["choices"][0]["message"]["content"] == SAID


async def test_form_that_takes_too_long_to_follow_fails_its_own_reply(shared: Server) -> None:
    shared.says("</think>", *["a"] * 1500)
    slow = {"guided_grammar": 'root ::= root root root | root root | "a" | "a" "a"'}
    failed, other = await asyncio.gather(shared.chat(**slow), shared.chat(guided_regex="a{40}"))
    assert failed.status_code == 500
    assert "takes too long to follow" in failed.json()["error"]["message"]
    assert other.json()["choices"][0]["message"]["content"] == "a" * 40
    assert (await shared.chat(**slow, max_tokens=9)).json()["choices"][0]["finish_reason"] == "length"


async def test_schema_that_no_value_can_end_runs_into_the_limit(shared: Server) -> None:
    shared.says("</think>", *['{"a":'] * 40)
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    choice = (await shared.chat(guided_json=endless, max_tokens=30)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith('{"a":{"a":{"a":')
