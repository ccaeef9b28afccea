# SPDX-License-Identifier: Apache-2.0
"""The value of a call's argument: the model writes text, the function's JSON schema says what it means.

The call format writes strings as they are and everything else as JSON, so text such as `5` or `null` is ambiguous. The
schema decides; where it allows a string beside other types, only an object, an array or null is taken for JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

Schema = Mapping[str, Any]

MOST_ALTERNATIVES = 64
"""Schemas that are looked at for one value: references may lead in circles."""

_MISSING = object()


def arguments_of(pairs: Sequence[tuple[str, str]], parameters: Schema) -> dict[str, Any]:
    """The arguments of a call written as (key, text) pairs; of two with one key the later counts."""
    properties = parameters.get("properties")
    others = parameters.get("additionalProperties")
    schemas = properties if isinstance(properties, dict) else {}
    return {key: typed_value(text, schemas.get(key, others), parameters) for key, text in pairs}


def typed_value(text: str, schema: Any, root: Schema) -> Any:
    """The value that `text` stands for under `schema`; `root` holds the definitions that references name.

    Text that is not JSON of an allowed type stays the text it is.
    """
    value = strict_json(text.strip())
    types: set[str] = set()
    for part in _alternatives(schema, root):
        if (literal := _literal(text, value, part)) is not _MISSING:
            return literal
        declared = part.get("type")
        types.update(name for name in (declared if isinstance(declared, list) else [declared]) if isinstance(name, str))
    if value is _MISSING:
        return text
    if "string" in types and not (value is None or isinstance(value, dict | list)):
        return text
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        value = int(value)
    return value if _types_of(value) & types else text


def strict_json(text: str) -> Any:
    """The value of JSON text that can be written as JSON again, in UTF-8; a private marker when it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        compact_json(value).encode()
    except (ValueError, RecursionError):
        return _MISSING
    return value


def json_object(text: str) -> dict[str, Any] | None:
    """The object that JSON text stands for; None when it is none."""
    value = strict_json(text)
    return value if isinstance(value, dict) else None


def compact_json(value: Any) -> str:
    """JSON on one line without blanks, non-ASCII text as it is. Raises ValueError for infinite numbers."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _literal(text: str, value: Any, schema: Schema) -> Any:
    """The constant of `const` or `enum` that the text spells, as JSON or as a bare string."""
    listed = schema.get("enum")
    for constant in [*([schema["const"]] if "const" in schema else []), *(listed if isinstance(listed, list) else [])]:
        if isinstance(constant, str):
            if constant == text:
                return constant
        elif value is not _MISSING and type(constant) is type(value) and constant == value:
            return constant
    return _MISSING


def _alternatives(schema: Any, root: Schema) -> list[Schema]:
    """The schema itself and every schema of which it is a choice or a sum, references resolved, each once."""
    found: list[Schema] = []
    waiting = [schema]
    while waiting and len(found) < MOST_ALTERNATIVES:
        part = waiting.pop(0)
        if not isinstance(part, dict) or any(part is known for known in found):
            continue
        found.append(part)
        if isinstance(reference := part.get("$ref"), str):
            waiting.append(_resolve(reference, root))
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(choices := part.get(word), list):
                waiting += choices[:MOST_ALTERNATIVES]
    return found


def _resolve(reference: str, root: Schema) -> Any:
    """What a local reference such as `#/$defs/Point` names; None for any other."""
    place: Any = root if reference.startswith("#") else None
    for name in reference.removeprefix("#").strip("/").split("/"):
        if name:
            place = place.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place


def _types_of(value: Any) -> set[str]:
    """The names that JSON schema has for a value's type."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}
