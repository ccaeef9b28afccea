# SPDX-License-Identifier: Apache-2.0
"""Reads JSON of any size from pieces of its bytes, and lets other threads run every few hundred microseconds.

The library's scanner holds the interpreter for as long as it takes, which may be seconds. Here it is given no more than
a window of the text at a time. A value that ends within it is the scanner's; of one that does not, the parts are read
one by one in the same way, and a text is put together of pieces. No number may be as long as a window.
"""

from __future__ import annotations

import codecs
import json
import re
import time
from collections import deque
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NoReturn

WINDOW = 64 * 1024
"""Characters that the scanner is given."""

MOST_VALUES = 4_000_000
"""Signs that begin or part values, those in short texts included: four for each token of the largest prompt. Every one
may come to a hundred bytes of memory and more.
"""

PAUSE_S = 0.00005
LONGEST_ESCAPE = 12

_BLANKS = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ENDS = {"{": "},", "[": "],", '"': '",'}
MOST_SINGLY = 16


class BadJson(Exception):
    """It is not the JSON that is accepted here; the text says what is wrong, after "the request body "."""


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"is not valid JSON: {name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read_json(parts: deque[bytes]) -> Any:
    """The value that the bytes are together, which are taken out of `parts` as they are read. Strict: UTF-8, no NaN or
    Infinity, no half of a surrogate pair. Raises BadJson.
    """
    try:
        return _Reader(parts).read()
    except RecursionError:
        raise BadJson("is nested too deeply") from None


class _Reader:
    """`_text` from `_at` on has been decoded and not been read yet; `_before` characters came before `_text`."""

    def __init__(self, parts: deque[bytes]) -> None:
        self._parts = parts
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._bytes = 0
        self._text = ""
        self._at = 0
        self._before = 0
        self._ended = False
        self._values = 0

    def read(self) -> Any:
        value = self._value()
        if self._next():
            raise self._bad("expected nothing more")
        return value

    def _bad(self, what: str) -> BadJson:
        return BadJson(f"is not valid JSON: {what} at character {self._before + self._at}")

    def _fill(self) -> None:
        """Have a window of text ahead, or all that is left."""
        if self._ended or len(self._text) - self._at >= WINDOW:
            return
        self._before += self._at
        ahead = [self._text[self._at :]]
        size = len(ahead[0])
        while size < 2 * WINDOW and not self._ended:
            ahead.append(self._decoded())
            size += len(ahead[-1])
        self._text, self._at = "".join(ahead), 0

    def _decoded(self) -> str:
        part = self._parts.popleft() if self._parts else b""
        if len(part) > WINDOW:
            self._parts.appendleft(part[WINDOW:])
            part = part[:WINDOW]
        self._ended = not self._parts
        time.sleep(PAUSE_S)
        try:
            text = self._decode(part, self._ended)
        except UnicodeDecodeError as error:
            raise BadJson(f"is not UTF-8: {error.reason} near byte {self._bytes + error.start}") from None
        self._bytes += len(part)
        return text

    def _next(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            self._fill()
            self._at = _BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""

    def _value(self) -> Any:
        sign = self._next()
        self._fill()
        try:
            value, end = _DECODER.scan_once(self._text, self._at)  # type: ignore[attr-defined]
        except (StopIteration, json.JSONDecodeError):
            pass
        except ValueError as error:
            raise BadJson(f"is not valid JSON: {error}") from None
        else:
            # A number that goes on behind what is in sight is longer than a window, and refused for what follows it.
            self._take(value, end)
            return value
        if sign == '"':
            return self._string()
        if sign == "[":
            return self._array()
        if sign == "{":
            return self._object()
        raise self._bad("expected a value")

    def _take(self, value: Any, end: int) -> None:
        """Go on behind a value that the scanner has read."""
        text, start = self._text, self._at
        self._values += sum(text.count(sign, start, end) for sign in "[{,")
        if self._values > MOST_VALUES:
            raise BadJson(f"has more than {MOST_VALUES} values")
        if _SURROGATE.search(text, start, end):
            _refuse_lone_surrogates(json.dumps(value, ensure_ascii=False))
        self._at = end

    def _object(self) -> dict[str, Any]:
        self._at += 1
        found: dict[str, Any] = {}
        if self._next() == "}":
            self._at += 1
            return found
        while True:
            if self._next() != '"':
                raise self._bad("expected the name of a field")
            name = self._value()
            if self._next() != ":":
                raise self._bad("expected a colon")
            self._at += 1
            found[name] = self._value()
            if self._is_last("}"):
                return found

    def _array(self) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        if self._next() == "]":
            self._at += 1
            return found
        singly = 0
        while True:
            if singly == 0 and self._several(found):
                continue
            singly = (singly or MOST_SINGLY) - 1
            found.append(self._value())
            if self._is_last("]"):
                return found

    def _several(self, found: list[Any]) -> bool:
        """Read as many of an array's values as end within the window, another of which follows."""
        end = _ENDS.get(self._next(), ",")
        self._fill()
        last = self._text.rfind(end, self._at, self._at + WINDOW)
        if last < 0:
            return False
        comma = last + len(end) - 1
        try:
            values = _DECODER.decode(f"[{self._text[self._at : comma]}]")
        except ValueError:
            return False
        self._take(values, comma)
        found += values
        self._at += 1
        return True

    def _is_last(self, close: str) -> bool:
        sign = self._next()
        if sign not in (",", close) or not sign:
            raise self._bad(f"expected a comma or {close}")
        self._at += 1
        return sign == close

    def _string(self) -> str:
        """A text that does not end within the window."""
        self._at += 1
        text = ""
        while True:
            self._fill()
            piece, closed = self._piece()
            _refuse_lone_surrogates(piece)
            # Grows in place: to join pieces of a clip would hold the interpreter while it copies all of them.
            text += piece
            if closed:
                return text

    def _piece(self) -> tuple[str, bool]:
        """As much of a text as ends neither within an escape nor within a pair of them; and whether the text ends."""
        limit = min(len(self._text), self._at + WINDOW)
        for cut in range(limit, max(limit - LONGEST_ESCAPE, self._at), -1):
            try:
                piece, end = scanstring(f'{self._text[self._at : cut]}"', 0, True)
            except json.JSONDecodeError:
                continue
            closed = end <= cut - self._at
            if not closed and piece[-1:] and "\ud800" <= piece[-1] <= "\udbff":
                continue
            if not closed and cut == len(self._text) and self._ended:
                break
            self._at += end if closed else cut - self._at
            return piece, closed
        raise self._bad("expected the end of a text, or a text without control characters and unknown escapes")


def _refuse_lone_surrogates(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadJson("has text with half of a surrogate pair, which is no character") from None
