# SPDX-License-Identifier: Apache-2.0
"""One call as a model writes it, read a token at a time:

    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>

The tags are markers of the tokenizer, never their spelling, so a value may quote the format. A block that cannot become
a call of an offered function is known as broken as early as possible; what was read of it is then ordinary text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sparkpair.chat.arguments import arguments_of, compact_json, json_object

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
KEY_OPEN = "<arg_key>"
KEY_CLOSE = "</arg_key>"
VALUE_OPEN = "<arg_value>"
VALUE_CLOSE = "</arg_value>"
CALL_MARKERS = (OPEN, CLOSE, KEY_OPEN, KEY_CLOSE, VALUE_OPEN, VALUE_CLOSE)

LONGEST_NAME = 256
"""Characters of a function's name, and of a key that stands without its opening tag."""

_FUNCTION = "<function="
_MARKUP = re.compile(r"\s*<function=([^<>\s]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class ToolCall(NamedTuple):
    """A whole call; `arguments` is a JSON object on one line."""

    name: str
    arguments: str


class Offer:
    """The functions of one request, found by name without regard to case; the exact spelling comes first."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._exact = {function.name: function for function in reversed(functions)}
        self._folded = {function.name.casefold(): function for function in reversed(functions)}

    def find(self, name: str) -> Function | None:
        """The function of that name."""
        return self._exact.get(name) or self._folded.get(name.casefold())

    def may_begin(self, text: str) -> bool:
        """Whether an offered name begins with the text."""
        return any(name.startswith(text.casefold()) for name in self._folded)


State = Literal["head", "gap", "key", "after key", "value", "foreign"]


class CallBlock:
    """A block from its opening tag on. After `broken` nothing more may be fed."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._raw = [OPEN]
        self._state: State = "head"
        self._text: list[str] = []
        self._function: Function | None = None
        self._key = ""
        self._pairs: list[tuple[str, str]] = []
        self.broken = False

    @property
    def raw(self) -> str:
        """Everything read, as it was written."""
        return "".join(self._raw)

    def text(self, text: str) -> None:
        """Read ordinary text."""
        self._raw.append(text)
        self._text.append(text)
        if self._state == "head":
            self._look_at_head()
        elif self._state == "after key":
            self.broken = not text.isspace()

    def marker(self, marker: str) -> ToolCall | None:
        """Read a tag other than the opening one; the call when this one completes it."""
        self._raw.append(marker)
        if self._state == "value":
            self.broken = marker != VALUE_CLOSE
            self._pairs.append((self._key, self._take()))
            self._state = "gap"
        elif self._state == "after key":
            self.broken = marker != VALUE_OPEN
            self._take()
            self._state = "value"
        elif self._state == "key":
            self._key_ends(marker == KEY_CLOSE, self._take().strip())
        elif marker == CLOSE:
            call = self._call()
            self.broken = call is None
            return call
        elif self._state == "foreign" or marker not in (KEY_OPEN, KEY_CLOSE):
            self.broken = True
        else:
            self._pair_begins(marker)
        return None

    def close(self) -> ToolCall | None:
        """The call that this is when its closing tag was left out; None when it is not complete, or more follows."""
        unfinished = self._state == "gap" and "".join(self._text).strip()
        return None if unfinished else self._call()

    def _take(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return text

    def _look_at_head(self) -> None:
        """Stop waiting for a call when no offered name begins like this."""
        head = "".join(self._text).lstrip()
        self._text = [head]
        if head.startswith(("{", _FUNCTION)):
            self._state = "foreign"
        elif not _FUNCTION.startswith(head):
            name, *rest = head.split(maxsplit=1)
            ended = len(head) > len(name)
            known = self._offer.find(name) is not None if ended else self._offer.may_begin(name)
            self.broken = not known or len(head) > 2 * LONGEST_NAME or len("".join(rest).split()) > 1

    def _pair_begins(self, marker: str) -> None:
        """A key's opening tag, or its closing tag when the opening one was left out: then the last word is the key."""
        words = self._take().split()
        if self._state == "head":
            self._function = self._offer.find(words.pop(0)) if words else None
        self._state = "key"
        if self._function is None or (marker == KEY_OPEN and words and not self._pairs):
            self.broken = True
        elif marker == KEY_CLOSE:
            self._key_ends(bool(words), words[-1] if words else "")

    def _key_ends(self, well_formed: bool, key: str) -> None:
        self.broken = not well_formed or not key
        self._key = key
        self._state = "after key"

    def _call(self) -> ToolCall | None:
        if self._state == "head":
            function = self._offer.find("".join(self._text).strip())
            return None if function is None else ToolCall(function.name, "{}")
        if self._state == "foreign":
            return self._foreign_call("".join(self._text))
        if self._state != "gap" or self._function is None:
            return None
        arguments = arguments_of(self._pairs, self._function.parameters)
        return ToolCall(self._function.name, compact_json(arguments))

    def _foreign_call(self, text: str) -> ToolCall | None:
        """A call in JSON, or in the markup of another model family."""
        if markup := _MARKUP.fullmatch(text):
            function = self._offer.find(markup[1])
            rest = _PARAMETER.sub("", markup[2]).strip()
            if function is None or rest:
                return None
            pairs = [(key.strip(), value) for key, value in _PARAMETER.findall(markup[2])]
            return ToolCall(function.name, compact_json(arguments_of(pairs, function.parameters)))
        written = json_object(text) or {}
        name, arguments = written.get("name"), written.get("arguments", written.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json_object(arguments)
        function = self._offer.find(name) if isinstance(name, str) else None
        if function is None or not isinstance(arguments, dict):
            return None
        return ToolCall(function.name, compact_json(arguments))
