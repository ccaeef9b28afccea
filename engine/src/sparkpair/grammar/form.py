# SPDX-License-Identifier: Apache-2.0
"""What an answer has to look like, as a client says it, and how large that may be. Knows nothing of how it is done."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Literal

Kind = Literal["json_schema", "regex", "grammar", "choice"]

MOST_CHARACTERS: dict[Kind, int] = {
    "json_schema": 128 * 1024,
    "regex": 16 * 1024,
    "grammar": 64 * 1024,
    "choice": 128 * 1024,
}
"""The longest text of a form; of a schema without blanks between its parts."""

MOST_CHOICES = 4096
HARMLESS_CHARACTERS = 16 * 1024
"""A choice of at most so many characters compiles in a moment, whatever it is made of."""


class FormRefused(Exception):
    """A form that cannot be kept to. The message says why, is fit for a client, and names the part at fault."""


class FormsBusy(Exception):
    """As many forms are being compiled, and wait for it, as may. The client may try again."""


class FormsUnavailable(Exception):
    """Nothing can be compiled at the moment, through no fault of the form."""


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """The form of an answer. `text` is a JSON schema, a regular expression, an EBNF grammar with the rule `root`, or a
    JSON list of the strings to choose from. Raises FormRefused when it is too large.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        limit = MOST_CHARACTERS[self.kind]
        if len(self.text) > limit:
            raise FormRefused(f"expected at most {limit} characters, found {len(self.text)}")
        if not self.text.isascii():
            try:
                self.text.encode()
            except UnicodeEncodeError:
                raise FormRefused("has half of a surrogate pair, which is no character") from None

    @property
    def harmless(self) -> bool:
        """Whether it can be compiled without having been tried."""
        return self == JSON_OBJECT or (self.kind == "choice" and len(self.text) <= HARMLESS_CHARACTERS)


JSON_OBJECT = Form("json_schema", '{"type":"object"}')
"""Any JSON object."""


_SCHEMAS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def schema_form(schema: object) -> Form:
    """The form of a JSON schema that has been parsed already. Raises FormRefused, without writing all of it where it is
    far too large.
    """
    limit = MOST_CHARACTERS["json_schema"]
    pieces: list[str] = []
    size = 0
    try:
        for piece in _SCHEMAS.iterencode(schema):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise FormRefused(f"expected at most {limit} characters")
    except RecursionError:
        raise FormRefused("is nested too deeply") from None
    return Form("json_schema", "".join(pieces))


def choice_form(choices: Sequence[str]) -> Form:
    """The form of one of some strings. Raises FormRefused."""
    if len(choices) > MOST_CHOICES:
        raise FormRefused(f"expected at most {MOST_CHOICES} choices, found {len(choices)}")
    return Form("choice", json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False))


def choice_grammar(choices: Sequence[str]) -> str:
    """The EBNF grammar of one of some strings."""
    return "root ::= " + " | ".join(f'"{"".join(map(_escaped, choice))}"' for choice in choices)


def _escaped(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in '"\\':
        return character
    return f"\\U{ord(character):08x}"
