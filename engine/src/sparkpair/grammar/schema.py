# SPDX-License-Identifier: Apache-2.0
"""Reads a JSON schema before it is compiled: what of it the grammar keeps, what has to be checked on the finished
value, and what is refused because nothing would come of it.

The compiler passes over what it cannot express without a word, so everything that it is not known to keep exactly is
noted here, and a value with anything noted is checked. What it would narrow for no reason is opened.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from jsonschema.exceptions import best_match  # type: ignore[import-untyped]
from referencing import Registry

from sparkpair.grammar.form import FormRefused

MOST_DEPTH = 64
MOST_PARTS = 4000
MOST_VALUES = 5000
LONGEST_PROBLEM = 300

FORMATS = frozenset(
    {
        "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference",
        "uri-template", "uuid", "json-pointer", "relative-json-pointer",
    }
)  # fmt: skip
"""Formats that the grammar keeps. The others are what the standard calls annotations: they say, and enforce nothing."""

STRING = frozenset({"minLength", "maxLength", "pattern", "format"})
NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
ARRAY = frozenset(
    {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"}
    | {"unevaluatedItems"}
)
OBJECT = frozenset(
    {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"}
    | {"maxProperties", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "dependencies"}
)
GROUPS = {"string": STRING, "number": NUMBER, "array": ARRAY, "object": OBJECT}
WHOLE = ("$ref", "anyOf", "oneOf", "allOf")
"""Keywords beside which the compiler drops all others."""

CONSTRAINING = STRING | NUMBER | ARRAY | OBJECT | {"enum", "const", *WHOLE}
_LOOKAROUND = re.compile(r"(?<!\\)(?:\\\\)*\(\?<?[=!]")
CHECKED = ("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains")
REFUSED = ("$dynamicRef", "$recursiveRef")

ONE = ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "propertyNames")
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")


@dataclasses.dataclass(frozen=True, slots=True)
class Reviewed:
    """`text` is the schema to compile; `unkept` names what a finished value has to be checked for, by the schema as the
    client wrote it.
    """

    text: str
    unkept: tuple[str, ...]


def review(text: str) -> Reviewed:
    """Read a schema. Raises FormRefused naming the part that cannot be kept to."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise FormRefused(f"is not JSON: {error}") from None
    reading = _Reading()
    opened = reading.part(schema, "", 0)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise FormRefused(f"{_place(error.json_path)}: {error.message}"[:LONGEST_PROBLEM]) from None
    return Reviewed(json.dumps(opened, ensure_ascii=False), tuple(sorted(reading.unkept)))


def problem(text: str, answer: str) -> str | None:
    """What is wrong with a finished answer by the schema in `text`; None when nothing is."""
    try:
        value = json.loads(answer)
    except ValueError as error:
        return f"it is not JSON: {error}"
    # Its own registry: the default one would fetch what a reference names from wherever that is.
    validator = jsonschema.Draft202012Validator(json.loads(text), registry=Registry())
    worst = best_match(validator.iter_errors(value))
    return None if worst is None else f"{_place(worst.json_path)}: {worst.message}"[:LONGEST_PROBLEM]


def _place(json_path: str) -> str:
    """Where it is, from the top."""
    return json_path.removeprefix("$").removeprefix(".") or "at the top"


class _Reading:
    """One walk through a schema."""

    def __init__(self) -> None:
        self.unkept: set[str] = set()
        self._parts = 0
        self._values = 0

    def part(self, schema: Any, where: str, depth: int) -> Any:
        """The part as it is compiled. What is no schema at all is left for the standard's own schema to refuse."""
        if not isinstance(schema, dict):
            return schema
        self._parts += 1
        if depth > MOST_DEPTH or self._parts > MOST_PARTS:
            raise FormRefused(f"expected at most {MOST_PARTS} parts, nested at most {MOST_DEPTH} deep")
        self._refuse(schema, where)
        opened = dict(schema)
        for name in ONE:
            if name in schema:
                opened[name] = self.part(schema[name], f"{where}.{name}", depth + 1)
        for name in LISTED:
            if isinstance(schema.get(name), list):
                opened[name] = [
                    self.part(one, f"{where}.{name}[{index}]", depth + 1) for index, one in enumerate(schema[name])
                ]
        for name in NAMED:
            if isinstance(schema.get(name), dict):
                opened[name] = {
                    key: self.part(one, f"{where}.{name}.{key}", depth + 1) for key, one in schema[name].items()
                }
        self._note(schema)
        for name in ("contains", "minContains", "maxContains"):
            opened.pop(name, None)  # the compiler takes the numbers for those of all items
        if isinstance(opened.get("prefixItems"), list):
            opened["prefixItems"] = [{} if one is True else one for one in opened["prefixItems"]]
        self._values_of(opened, where)
        _open(opened)
        return opened

    def _refuse(self, schema: dict[str, Any], where: str) -> None:
        place = where.removeprefix(".") or "at the top"
        for name in REFUSED:
            if name in schema:
                raise FormRefused(f"{place}: {name} is not supported; use $ref")
        if where and "$id" in schema:
            raise FormRefused(f"{place}: $id is supported at the top only")
        reference = schema.get("$ref", "#")
        if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
            raise FormRefused(f"{place}: $ref {reference[:64]!r} is not supported; refer to a part by #/ and its place")
        if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
            raise FormRefused(f"{place}: allOf with several members is not supported; write them as one schema")
        for pattern in [schema.get("pattern"), *(schema.get("patternProperties") or ())]:
            if isinstance(pattern, str):
                _refuse_pattern(pattern, place)
        for name in WHOLE:
            beside = sorted(CONSTRAINING & schema.keys() - {name})
            if name in schema and beside:
                raise FormRefused(f"{place}: {name} beside {beside[0]} is not supported; put one into the other")

    def _note(self, schema: dict[str, Any]) -> None:
        """Take down what the grammar does not keep, or not exactly."""
        types = schema.get("type")
        self.unkept |= {name for name in CHECKED if name in schema}
        if schema.get("uniqueItems"):
            self.unkept.add("uniqueItems")
        if "oneOf" in schema:
            self.unkept.add("oneOf")
        if types is not None and any(name in schema for name in WHOLE):
            self.unkept.add("type")
        if "multipleOf" in schema and (types != "integer" or not isinstance(schema["multipleOf"], int)):
            self.unkept.add("multipleOf")
        if "pattern" in schema:
            self.unkept.add("pattern")
        if "format" in schema and STRING & schema.keys() != {"format"}:
            self.unkept |= STRING & schema.keys() - {"format"}
        if "patternProperties" in schema:
            self.unkept.add("patternProperties")
        if "enum" in schema or "const" in schema:
            self.unkept |= CONSTRAINING & schema.keys() - {"enum"} if "enum" in schema else set()
            self.unkept |= CONSTRAINING & schema.keys() - {"const"} if "const" in schema else set()
        if types is None and len(_groups(schema)) > 1:
            self.unkept |= CONSTRAINING & schema.keys()
        if "required" in schema and ("patternProperties" in schema or not isinstance(schema["required"], list)):
            self.unkept.add("required")

    def _values_of(self, opened: dict[str, Any], where: str) -> None:
        """Of the values to choose from, keep those of the right type."""
        if isinstance(opened.get("enum"), list):
            self._values += len(opened["enum"])
            if self._values > MOST_VALUES:
                raise FormRefused(f"expected at most {MOST_VALUES} values in all enums together")
            opened["enum"] = [value for value in opened["enum"] if _is_of(value, opened.get("type"))]
        if opened.get("enum") == [] or ("const" in opened and not _is_of(opened["const"], opened.get("type"))):
            raise FormRefused(f"{where.removeprefix('.') or 'at the top'}: there is no value of the type")


def _refuse_pattern(pattern: str, place: str) -> None:
    if _LOOKAROUND.search(pattern):
        raise FormRefused(f"{place}: lookahead and lookbehind are not supported in patterns")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise FormRefused(f"{place}: {pattern[:64]!r} is not a regular expression: {error}") from None


def _groups(schema: dict[str, Any]) -> list[str]:
    """The types that a part speaks of without naming one."""
    if any(name in schema for name in ("type", "enum", "const", *WHOLE)):
        return []
    return [name for name, keywords in GROUPS.items() if keywords & schema.keys()]


def _open(schema: dict[str, Any]) -> None:
    """Say what the compiler would otherwise take for something else, or close for want of a word."""
    groups = _groups(schema)
    if len(groups) == 1:
        schema["type"] = groups[0]
    types = _names(schema.get("type"))
    if "array" in types and not {"items", "prefixItems", "unevaluatedItems"} & schema.keys():
        schema["items"] = True
    if "object" not in types or "patternProperties" in schema:
        return
    declared = {"properties", "additionalProperties", "unevaluatedProperties"}
    bounded = {"required", "minProperties", "maxProperties", "propertyNames"}
    if not declared & schema.keys() and bounded & schema.keys():
        schema["additionalProperties"] = True
    others = schema.get("additionalProperties", True)
    if isinstance(schema.get("required"), list) and others is not False:
        properties = dict(schema.get("properties") or {})
        for name in schema["required"]:
            if isinstance(name, str):
                properties.setdefault(name, others)
        schema["properties"] = properties


def _names(types: Any) -> list[Any]:
    return types if isinstance(types, list) else [] if types is None else [types]


def _is_of(value: Any, types: Any) -> bool:
    """Whether a value is of the type, or one of the types, that a schema names; of any where it names none."""
    names = _names(types)
    if value is None or isinstance(value, bool):
        found = ["null" if value is None else "boolean"]
    elif isinstance(value, int | float):
        found = ["number", "integer"] if isinstance(value, int) or value.is_integer() else ["number"]
    else:
        found = ["string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"]
    return not names or any(name in names for name in found)
