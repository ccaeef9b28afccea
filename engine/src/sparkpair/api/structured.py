# SPDX-License-Identifier: Apache-2.0
"""The form that a request asks of the answer: which of its fields says so, and what the form is.

Of several fields the first in this order counts: `response_format`, `guided_json`, `guided_regex`, `guided_choice`,
`guided_grammar`, `structured_outputs`. All of them are checked.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from sparkpair.api.errors import ApiError, invalid, unsupported
from sparkpair.api.fields import Fields
from sparkpair.grammar.form import JSON_OBJECT, MOST_CHARACTERS, Form, FormRefused, choice_form, schema_form

KINDS = ("json", "json_object", "regex", "choice", "grammar")
"""Members of `structured_outputs`, of which a request names one."""

MOST_WRITTEN = 8 * MOST_CHARACTERS["json_schema"]
"""Characters of a schema that is given as a string, blanks between its parts included."""


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of the answer, and the `param` that asks for it: a field of the request, or a place in one."""

    form: Form
    param: str

    def renamed(self, names: Mapping[str, str]) -> AnswerForm:
        """The same for a client that knows its field under another name."""
        return dataclasses.replace(self, param=names.get(self.param, self.param))


def answer_form(fields: Fields) -> AnswerForm | None:
    """The form that a request asks for, if any. Raises ApiError 400."""
    asked = [
        ("response_format", _response_format(fields.object("response_format"))),
        ("guided_json", _said("guided_json", _schema, fields.get("guided_json"))),
        ("guided_regex", _said("guided_regex", _regex, fields.get("guided_regex"))),
        ("guided_choice", _said("guided_choice", _choice, fields.get("guided_choice"))),
        ("guided_grammar", _said("guided_grammar", _grammar, fields.get("guided_grammar"))),
        ("structured_outputs", _structured_outputs(fields.object("structured_outputs"))),
    ]
    return next((AnswerForm(form, param) for param, form in asked if form is not None), None)


def _response_format(given: Mapping[str, Any]) -> Form | None:
    if not given:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return JSON_OBJECT
    if kind != "json_schema":
        raise invalid("response_format.type: expected text, json_object or json_schema", "response_format")
    described = given.get("json_schema")
    if not isinstance(described, dict) or described.get("schema") is None:
        raise invalid("response_format.json_schema: expected an object with a schema", "response_format")
    return _said("response_format", _schema, described["schema"], "response_format.json_schema.schema")


def _structured_outputs(given: Mapping[str, Any]) -> Form | None:
    named = {name: value for name, value in given.items() if value is not None and value is not False}
    for name in sorted(named.keys() - set(KINDS)):
        raise _renamed(unsupported(f"structured_outputs.{name[:64]}"))
    if not named:
        return None
    if len(named) > 1:
        raise invalid(f"structured_outputs: expected one of {', '.join(KINDS)}", "structured_outputs")
    [(name, value)] = named.items()
    reads = {"json": _schema, "regex": _regex, "choice": _choice, "grammar": _grammar, "json_object": _json_object}
    return _said("structured_outputs", reads[name], value, f"structured_outputs.{name}")


def _renamed(error: ApiError) -> ApiError:
    error.param = "structured_outputs"
    return error


def _said(param: str, read: Any, value: Any, place: str | None = None) -> Form | None:
    """The form that `read` makes of a field's value; `place` is what errors call it."""
    if value is None:
        return None
    try:
        form: Form = read(value)
    except FormRefused as error:
        raise invalid(f"{place or param}: {error}", param) from None
    return form


def _schema(value: Any) -> Form:
    if isinstance(value, str):
        if len(value) > MOST_WRITTEN:
            raise FormRefused(f"expected at most {MOST_WRITTEN} characters")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise FormRefused("expected a JSON schema, found a string that is not JSON") from None
    if value is not True and not isinstance(value, dict):
        raise FormRefused("expected a JSON schema: an object, or a JSON string of one")
    return schema_form(value)


def _json_object(value: Any) -> Form:
    if value is not True:
        raise FormRefused("expected true or false")
    return JSON_OBJECT


def _regex(value: Any) -> Form:
    return Form("regex", _text(value, "a regular expression"))


def _grammar(value: Any) -> Form:
    return Form("grammar", _text(value, "an EBNF grammar with a rule named root"))


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise FormRefused(f"expected {what}: a non-empty string")
    return value


def _choice(value: Any) -> Form:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise FormRefused("expected a non-empty list of non-empty strings")
    return choice_form(value)
