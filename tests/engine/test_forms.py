# SPDX-License-Identifier: Apache-2.0
"""Answers with a form are exact: whatever drafts and whatever runs beside them, the serial reply comes out, and it has
its form.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
from collections.abc import Callable

import jsonschema
import pytest
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.chat.steering import Route
from sparkpair.checkpoint.miniature_text import write_tokenizer
from sparkpair.drafting.orders import Kind
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.grammar.form import JSON_OBJECT, Form, choice_form, schema_form
from sparkpair.grammar.forms import Forms
from sparkpair.request import Constraint, GenerationRequest, SamplingParams
from sparkpair.stream import Stream

from tests.engine.test_drafters import Loaded, ask_all, engine, load_agreeing
from tests.engine.test_exactness import Reply, collect, requests

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["wheel", "door", "window"]},
        "size": {"type": "integer", "minimum": -20, "maximum": 300},
        "notes": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
        "ready": {"type": "boolean"},
    },
    "required": ["kind", "size", "notes"],
    "additionalProperties": False,
}
NAMES = ["get", "get_weather", "fly"]
MARKER = 300

Holds = Callable[[str], object]
FORMS: list[tuple[Form, Holds]] = [
    (schema_form(SCHEMA), lambda text: jsonschema.validate(json.loads(text), SCHEMA) is None),
    (Form("regex", "[a-f]{6,20}(yes|no)"), lambda text: re.fullmatch("[a-f]{6,20}(yes|no)", text)),
    (Form("grammar", 'root ::= "(" root ")" | [a-z]{3,9}'), lambda text: re.fullmatch(r"\(*[a-z]{3,9}\)*", text)),
    (choice_form(["a long answer that is one of two", "a long answer that is the other"]), lambda text: len(text) > 30),
    (JSON_OBJECT, lambda text: text.startswith("{")),
]
SAMPLING = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.9, top_p=0.8, top_k=40, min_p=0.02),
]


@dataclasses.dataclass(frozen=True)
class Formed:
    """A model, its text side, and the requests with what each answer must be."""

    loaded: Loaded
    text: CheckpointText
    asked: list[tuple[GenerationRequest, Holds]]
    free: list[GenerationRequest]

    def answer(self, reply: Reply) -> str:
        """The text of a reply behind its think block, end marks left out."""
        tokens = [token for token in reply[0] if token not in self.text.stop_ids]
        close = self.text.tokenizer.marker_ids["</think>"]
        tokens = tokens[tokens.index(close) + 1 :] if close in tokens else tokens
        return b"".join(map(self.text.tokenizer.token_bytes, tokens)).decode(errors="replace")


@pytest.fixture(scope="module")
def formed(tmp_path_factory: pytest.TempPathFactory) -> Formed:
    loaded = load_agreeing(tmp_path_factory)
    write_tokenizer(loaded.directory, 320)
    text = CheckpointText.load(loaded.directory)
    assert text.vocab_size == 320
    forms = Forms(text)
    compiled = [(forms.compile(form.kind, form.text), holds) for form, holds in FORMS]
    markers = text.tokenizer.marker_ids
    names = forms.compile("choice", json.dumps(NAMES)).ending_with((markers["</tool_call>"], markers["<arg_key>"]))
    choose = random.Random(2)

    def request(constraint: Constraint, sampling: SamplingParams, quoted: list[int]) -> GenerationRequest:
        prompt = [*(choose.randrange(1, 256) for _ in range(choose.randrange(1, 70))), *quoted]
        return GenerationRequest(tuple(prompt), 60, sampling, text.stop_ids, constraint=constraint)

    def route(**fields: object) -> Route:
        return dataclasses.replace(
            Route(
                inside_thinking=False,
                think_close=markers["</think>"],
                stop_ids=text.stop_ids,
                call_close=markers["</tool_call>"],
                is_blank=lambda token: text.tokenizer.token_bytes(token).isspace(),
                closing=(*text.tokenizer.encode_text("\n"), markers["</think>"]),
            ),
            **fields,
        )

    # Something to copy that has the form, something that has it for a while, and something that has not.
    quotes = ['{"kind":"wheel","size":12,"notes":["ab","cde"],"ready":true}', '{"kind":"wheel", "size": x', "zzzz" * 9]
    asked: list[tuple[GenerationRequest, Holds]] = []
    for index, sampling in enumerate(SAMPLING):
        quoted = text.tokenizer.encode_text(quotes[index % 3]) * 2
        for constraint, holds in compiled:
            asked.append((request(constraint, sampling, quoted), holds))
        thinking = route(inside_thinking=True, thinking_budget=9 + index, form=compiled[index][0])
        asked.append((request(thinking, sampling, quoted), compiled[index][1]))
        call = route(call=(markers["<tool_call>"],), form=names)
        asked.append((request(call, sampling, quoted), re.compile("<tool_call>(get|get_weather|fly)<").match))
    return Formed(loaded, text, asked, requests()[2:5])


@pytest.fixture(scope="module")
def serial(formed: Formed) -> list[Reply]:
    async def run() -> list[Reply]:
        with engine(formed.loaded, None, "0", lanes=1) as served:
            return [await collect(served, request) for request in [*(one for one, _ in formed.asked), *formed.free]]

    return asyncio.run(run())


def test_answers_that_come_to_their_end_have_their_form(formed: Formed, serial: list[Reply]) -> None:
    ended = 0
    for (_, holds), reply in zip(formed.asked, serial, strict=False):
        if reply[1] == "stop":
            assert holds(formed.answer(reply)), formed.answer(reply)
            ended += 1
    assert ended > len(serial) / 3


@pytest.mark.parametrize(
    ("kind", "policy", "lanes", "copies"),
    [
        (None, "0", 4, 15),
        ("mtp", "4", 4, 0),
        ("dflash2", "fnc7:0.3", 4, 15),
    ],
)
async def test_every_policy_gives_the_serial_answer(
    formed: Formed, serial: list[Reply], kind: Kind | None, policy: str, lanes: int, copies: int
) -> None:
    with engine(formed.loaded, kind, policy, lanes=lanes, copies=CopyDrafting(copies)) as served:
        replies = await ask_all(served, [*(request for request, _ in formed.asked), *formed.free])
        health = served.health()
    assert replies == serial
    assert 0 < health.accepted_total < health.drafted_total


class Wrong:
    """Proposes what no form here lets through, behind what it does."""

    def __init__(self, replies: dict[tuple[int, ...], Reply]) -> None:
        self._replies = replies
        self.right = 0

    def propose(self, stream: Stream, most: int) -> list[int]:
        coming = list(self._replies[stream.job.request.prompt_ids][0][stream.produced : stream.produced + 2])
        self.right += min(len(coming), most)
        return [*coming, *[MARKER] * 6][:most]

    def forget(self, stream: Stream) -> None:
        pass


async def test_drafts_that_a_form_forbids_take_no_rows(formed: Formed, serial: list[Reply]) -> None:
    asked = [request for request, _ in formed.asked if not isinstance(request.constraint, Route)]
    replies = {request.prompt_ids: reply for (request, _), reply in zip(formed.asked, serial, strict=False)}
    wrong = Wrong(replies)
    with engine(formed.loaded, None, "0", lanes=4, copies=wrong) as served:  # type: ignore[arg-type]
        assert await ask_all(served, asked) == [replies[request.prompt_ids] for request in asked]
        health = served.health()
    assert health.drafted_total == wrong.right
    assert health.accepted_total > wrong.right * 0.9
