# SPDX-License-Identifier: Apache-2.0
"""JSON schemas: what the grammar keeps by itself, measured keyword by keyword, and that nothing else slips through."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.grammar.form import FormRefused, choice_form, choice_grammar
from sparkpair.grammar.forms import Compiled, Forms
from sparkpair.grammar.schema import problem, review

KEYWORDS = Path(__file__).parents[2] / "scripts" / "keywords.yml"
ROWS: list[dict[str, Any]] = yaml.safe_load(KEYWORDS.read_text())


@pytest.fixture(scope="module")
def forms(text_directory: Path) -> Forms:
    return Forms(CheckpointText.load(text_directory))


@pytest.fixture(scope="module")
def text(text_directory: Path) -> CheckpointText:
    return CheckpointText.load(text_directory)


def comes_through(compiled: Compiled, text: CheckpointText, answer: str) -> bool:
    """Whether a reply may be this text and end behind it."""
    matcher = compiled.matcher()
    ends = sorted(text.stop_ids)[:1]
    for token in [*text.tokenizer.encode_text(answer), *ends]:
        allowed = numpy.isfinite(matcher.mask(numpy.zeros(text.vocab_size, numpy.float32)))
        if not allowed[token]:
            return False
        matcher.accept(token)
    return True


@pytest.mark.parametrize("row", ROWS, ids=[row["keywords"] for row in ROWS])
def test_every_keyword_becomes_what_the_documentation_says(forms: Forms, text: CheckpointText, row: Any) -> None:
    if row["becomes"] == "refused":
        with pytest.raises(FormRefused):
            review(row["schema"])
        return
    reviewed = review(row["schema"])
    compiled = forms.compile("json_schema", reviewed.text)
    assert bool(reviewed.unkept) == (row["becomes"] == "checked")
    for value in row.get("good", ()):
        assert comes_through(compiled, text, value), value
        assert problem(row["schema"], value) is None
    for value in row["bad"]:
        assert comes_through(compiled, text, value) == (row["becomes"] == "checked"), value
        assert row["becomes"] == "kept" or problem(row["schema"], value)


BOUNDED = st.integers(0, 5)
NAMES = st.sampled_from(["a", "b", "long name", "é", '"q"', "$ref", "enum"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 10**6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def bounds(draw: st.DrawFn, low: str, high: str, most: int = 6) -> dict[str, Any]:
    least = draw(st.integers(0, most))
    found = {low: least, high: draw(st.integers(least, most))}
    return {name: found[name] for name in draw(st.sampled_from([(), (low,), (low, high), (high,)]))}


STRINGS = st.one_of(
    st.builds(lambda b: {"type": "string", "maxLength": 9, **b}, bounds("minLength", "maxLength")),
    st.builds(lambda name: {"type": "string", "format": name}, st.sampled_from(["date", "uuid", "ipv4", "time"])),
    st.builds(lambda p, b: {"type": "string", "pattern": p, **b}, st.sampled_from(["^[a-c]{2,4}$", "x|y", "\\d"]),
              bounds("minLength", "maxLength")),
)  # fmt: skip
NUMBERS = st.builds(
    lambda kind, low, width, exclusive: {
        "type": kind,
        "exclusiveMinimum" if exclusive else "minimum": low,
        "maximum": low + width,
    },
    st.sampled_from(["integer", "number"]),
    st.integers(-500, 500),
    st.integers(1, 900),
    st.booleans(),
)
LEAVES = st.one_of(
    STRINGS,
    NUMBERS,
    st.builds(lambda n: {"type": "integer", "multipleOf": n, "minimum": 0, "maximum": 99}, st.integers(2, 9)),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=4, unique_by=repr)),
    st.builds(lambda value: {"const": value}, VALUES),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]),
    st.builds(lambda values: {"type": "string", "enum": ["x", *values]}, st.lists(VALUES, max_size=3, unique_by=repr)),
)


def _containers(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    closed = st.sampled_from([{}, {"additionalProperties": False}])
    return st.one_of(
        st.builds(
            lambda items, b, unique: {"type": "array", "items": items, "maxItems": 3, **b, **unique},
            inner,
            bounds("minItems", "maxItems", 3),
            st.sampled_from([{}, {}, {"uniqueItems": True}]),
        ),
        st.builds(
            lambda props, needed, shut: {
                "type": "object",
                "properties": props,
                "required": [name for name in props if name in needed],
                **shut,
            },
            properties,
            st.sets(NAMES),
            closed,
        ),
        st.builds(lambda members: {"anyOf": members}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda members: {"oneOf": members}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda items: {"type": "array", "prefixItems": items}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda one: {"$defs": {"n": one}, "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"],
                               "type": "object"}, inner),
    )  # fmt: skip


def answer_of(compiled: Compiled, text: CheckpointText, choose: random.Random) -> str | None:
    """A random reply that keeps to the form, ending as soon as it may; None when it has become long."""
    matcher = compiled.matcher()
    said: list[int] = []
    for _ in range(400):
        allowed = numpy.flatnonzero(numpy.isfinite(matcher.mask(numpy.zeros(text.vocab_size, numpy.float32))))
        ends = [token for token in allowed if int(token) in text.stop_ids]
        token = int(choose.choice(ends or allowed))
        matcher.accept(token)
        if ends:
            # The compiler lets the bytes of surrogates through, which no model ever says in a row.
            return b"".join(map(text.tokenizer.token_bytes, said)).decode(errors="ignore")
        said.append(token)
    return None


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=st.recursive(LEAVES, _containers, max_leaves=6), seed=st.integers(0, 9))
def test_answers_of_random_schemas_are_valid_or_found_out(
    forms: Forms, text: CheckpointText, schema: dict[str, Any], seed: int
) -> None:
    written = json.dumps(schema)
    try:
        reviewed = review(written)
        compiled = forms.compile("json_schema", reviewed.text)
    except FormRefused:
        # Nothing here that has a value is refused, except references beside a $defs that is not at the top.
        assume("$ref" not in written)
        assert not any(
            jsonschema.Draft202012Validator(schema).is_valid(value) for value in (None, True, [], {}, "", 0, 1)
        )
        return
    answer = answer_of(compiled, text, random.Random(seed))
    assume(answer is not None)
    assert isinstance(answer, str)
    if not reviewed.unkept:
        jsonschema.validate(json.loads(answer), schema, jsonschema.Draft202012Validator)
    found = problem(written, answer)
    valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(answer)) if "\\d" not in written else True
    assert (found is None) == valid or "\\d" in written


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), min_size=1, max_size=5))
def test_choice_is_of_the_strings_themselves_whatever_they_are_made_of(
    forms: Forms, text: CheckpointText, choices: list[str]
) -> None:
    compiled = forms.compile("choice", choice_form(choices).text)
    for choice in choices:
        assert comes_through(compiled, text, choice)
        assert comes_through(compiled, text, choice + "x") == (choice + "x" in choices)


def test_grammar_of_choices_has_nothing_but_ascii() -> None:
    assert choice_grammar(['a"\\', "\n😀"]) == 'root ::= "a\\U00000022\\U0000005c" | "\\U0000000a\\U0001f600"'


def test_no_form_can_ask_for_a_marker(forms: Forms, text: CheckpointText) -> None:
    compiled = forms.compile("regex", "(<tool_call>|</think>|<[|]user[|]>)+")
    markers = set(text.tokenizer.marker_ids.values()) - text.stop_ids
    for answer in ("<tool_call>", "</think><|user|>"):
        assert comes_through(compiled, text, answer)
    allowed = numpy.flatnonzero(numpy.isfinite(compiled.matcher().mask(numpy.zeros(text.vocab_size, numpy.float32))))
    assert not markers & {int(token) for token in allowed}


def test_reference_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_: pytest.fail("fetched"))
    for schema in ('{"$ref":"http://127.0.0.1:9/x"}', '{"$id":"http://127.0.0.1:9/","$ref":"x"}'):
        with pytest.raises(FormRefused, match=r"\$ref"):
            review(schema)
    with pytest.raises(Exception, match="127"):
        problem('{"$ref":"http://127.0.0.1:9/x"}', "1")
