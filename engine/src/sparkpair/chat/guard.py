# SPDX-License-Identifier: Apache-2.0
"""Keeps what a caller wrote from becoming a marker when a template prints it.

A template mixes its own markers with the caller's text in one string. Before rendering, a secret run of
digits goes behind every character of the caller's text that could begin a marker; after rendering, whatever
still spells a marker is the template's own, and the digits are taken out of the text between. Digits
survive everything that templates do to strings (JSON, trimming, changing case).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from sparkpair.chat.tokenizer import Segment, TextTokenizer

_DIGITS = 24


class Guard:
    """The guard of one rendering; its digits are used once."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._digits = str(secrets.randbelow(10**_DIGITS)).zfill(_DIGITS)
        self._first = sorted({marker[0] for marker in markers})

    def protect(self, value: Any) -> Any:
        """A copy of JSON-like data in which no string, key or value, can begin a marker."""
        if isinstance(value, str):
            for character in self._first:
                value = value.replace(character, character + self._digits)
            return value
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def split(self, rendered: str, tokenizer: TextTokenizer) -> list[Segment]:
        """Cut a rendered prompt at the template's own markers, with the caller's text as it was."""
        return [
            segment if segment.is_marker else Segment(segment.text.replace(self._digits, ""), False)
            for segment in tokenizer.split_markers(rendered)
        ]
