# SPDX-License-Identifier: Apache-2.0
"""Answers with a form from two real ranks: valid, the same with drafts and together; what is refused ends nothing."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI

from tests.engine.pair.ranks import PATIENCE, World

pytestmark = pytest.mark.pair

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["wheel", "door", "window"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 500},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["kind", "size", "tags"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "part", "schema": SCHEMA, "strict": True}}},
    {"guided_regex": "[a-z]{4,9} is (true|false)"},
    {"guided_choice": ["the first of the two", "the second of the two"]},
    {"guided_grammar": 'root ::= "[" item ("," item){2} "]"\nitem ::= [0-9]{1,3}'},
]


@pytest.fixture(scope="module")
def client(pair: World) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{pair.url}/v1", api_key="unused", max_retries=0, timeout=120) as opened:
        yield opened


def holds(form: dict[str, Any], answer: str) -> bool:
    """Whether an answer has the form."""
    if "response_format" in form:
        return jsonschema.Draft202012Validator(SCHEMA).is_valid(json.loads(answer))
    if "guided_choice" in form:
        return answer in form["guided_choice"]
    pattern = form.get("guided_regex", r"\[\d{1,3}(,\d{1,3}){2}\]")
    return re.fullmatch(pattern, answer) is not None


def ask(client: OpenAI, form: dict[str, Any], **fields: Any) -> tuple[str | None, str]:
    """The answer, and why it ended."""
    extra = {"chat_template_kwargs": {"enable_thinking": False}, **form, **fields.pop("extra", {})}
    reply = client.chat.completions.create(model="miniature", messages=HI, max_tokens=200, extra_body=extra, **fields)
    return reply.choices[0].message.content, reply.choices[0].finish_reason


def trials_of(pair: World) -> list[int]:
    """The processes of rank 0 in which forms are tried."""
    parent, found = pair.ranks[0].process.pid, []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{parent}\n" in (place / "status").read_text():
                found += [int(place.name)] if b"sparkpair.grammar.nursery" in (place / "cmdline").read_bytes() else []
    return found


def test_rank_0_is_ready_for_forms_before_the_first_one(pair: World) -> None:
    given_up = time.monotonic() + PATIENCE
    while not trials_of(pair):
        assert time.monotonic() < given_up


def test_answers_are_valid_and_the_same_with_drafts_and_together(client: OpenAI) -> None:
    asked = [(form, {"temperature": temperature, "seed": 5}) for form in FORMS for temperature in (0.0, 1.0)]
    serial = [ask(client, form, **fields, extra={"draft": False}) for form, fields in asked]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda one: ask(client, one[0], **one[1]), asked))
    assert together == serial
    ended = [
        holds(form, answer or "") for (form, _), (answer, reason) in zip(asked, serial, strict=True) if reason == "stop"
    ]
    assert len(ended) >= 6
    assert all(ended)


def test_form_begins_where_the_budget_closes_the_think_block(client: OpenAI) -> None:
    extra = {"thinking_budget": 12, "guided_choice": ["yes", "no"], "return_token_ids": True}
    reply = client.chat.completions.create(model="miniature", messages=HI, max_tokens=60, extra_body=extra)
    assert reply.choices[0].message.content in ("yes", "no")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens == 13


def test_refused_forms_leave_the_pair_serving(client: OpenAI) -> None:
    for form in ({"guided_regex": "a(?=b)"}, {"guided_json": {"$ref": "#"}}, {"guided_grammar": "nothing"}):
        with pytest.raises(BadRequestError):
            ask(client, form)
    assert ask(client, {"guided_choice": ["yes"]}) == ("yes", "stop")
