# SPDX-License-Identifier: Apache-2.0
"""What an argument's text means is what the function's schema says, and otherwise the text itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.chat.arguments import arguments_of, compact_json, typed_value

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}
ROOT = {"$defs": {"Point": POINT, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]}}}

CASES: list[tuple[Any, str, Any]] = [
    ({"type": "integer"}, "5", 5),
    ({"type": "integer"}, " 5\n", 5),
    ({"type": "integer"}, "5.0", 5),
    ({"type": "integer"}, "5.5", "5.5"),
    ({"type": "integer"}, "five", "five"),
    ({"type": "integer"}, "true", "true"),
    ({"type": "integer"}, "9" * 5000, "9" * 5000),
    ({"type": "number"}, "5", 5),
    ({"type": "number"}, "-1.5e3", -1500.0),
    ({"type": "number"}, "NaN", "NaN"),
    ({"type": "number"}, "1e999", "1e999"),
    ({"type": "boolean"}, "true", True),
    ({"type": "boolean"}, "True", "True"),
    ({"type": "boolean"}, "1", "1"),
    ({"type": "null"}, "null", None),
    ({"type": "array"}, '["a", 1, null]', ["a", 1, None]),
    ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
    ({"type": "array"}, "[" * 100_000, "[" * 100_000),
    ({"type": "object"}, '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
    ({"type": "object"}, '{"a": "\\ud800"}', '{"a": "\\ud800"}'),
    ({"type": "string"}, "5", "5"),
    ({"type": "string"}, "null", "null"),
    ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    ({"type": "string"}, '"quoted"', '"quoted"'),
    ({"type": "string"}, "\n  kept \n", "\n  kept \n"),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "null"]}, "nothing", "nothing"),
    ({"type": ["string", "number"]}, "5", "5"),
    ({"type": ["string", "array"]}, '["a"]', ["a"]),
    ({"type": ["string", "array"]}, "a", "a"),
    ({"type": ["integer", "null"]}, "null", None),
    ({"type": ["integer", "null"]}, "7", 7),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
    ({"oneOf": [{"type": "string"}, {"type": "object"}]}, '{"a": 1}', {"a": 1}),
    ({"allOf": [{"$ref": "#/$defs/Point"}]}, '{"x": 1}', {"x": 1}),
    ({"$ref": "#/$defs/Point"}, '{"x": 1}', {"x": 1}),
    ({"$ref": "#/$defs/Missing"}, '{"x": 1}', '{"x": 1}'),
    ({"$ref": "https://example.org/s"}, "1", "1"),
    ({"$ref": "#/$defs/Loop"}, "1", 1),
    ({"const": 5}, "5", 5),
    ({"const": "5"}, "5", "5"),
    ({"const": None}, "null", None),
    ({"const": True}, "1", "1"),
    ({"enum": [1, 2]}, "2", 2),
    ({"enum": ["1", 2]}, "1", "1"),
    ({"enum": ["a", None], "type": ["string", "null"]}, "null", None),
    ({}, "5", "5"),
    (None, "5", "5"),
    (True, "5", "5"),
    ({"type": 5}, "5", "5"),
]


@pytest.mark.parametrize(("schema", "text", "value"), CASES, ids=range(len(CASES)))
def test_schema_decides_what_a_text_means(schema: Any, text: str, value: Any) -> None:
    found = typed_value(text, schema, ROOT)
    assert (type(found), found) == (type(value), value)


def test_keys_without_a_schema_of_their_own_are_text_or_as_additional_ones() -> None:
    schema = {"properties": {"a": {"type": "integer"}}}
    pairs = [("a", "1"), ("b", "2"), ("a", "3")]
    assert arguments_of(pairs, schema) == {"a": 3, "b": "2"}
    assert arguments_of(pairs, {**schema, "additionalProperties": {"type": "integer"}}) == {"a": 3, "b": 2}
    assert arguments_of(pairs, {"properties": []}) == {"a": "3", "b": "2"}


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1), json_values, max_size=4))
def test_values_written_as_the_template_writes_them_come_back(values: dict[str, Any]) -> None:
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    schema = {"properties": {key: {"type": names.get(type(value), "string")} for key, value in values.items()}}
    pairs = [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in values.items()
    ]
    assert arguments_of(pairs, schema) == values
    assert json.loads(compact_json(values)) == values


@given(st.text(), json_values)
def test_any_text_under_any_schema_gives_json(text: str, schema: Any) -> None:
    compact_json(typed_value(text, schema, {"$defs": schema})).encode()
