# SPDX-License-Identifier: Apache-2.0
"""Remembers which stretches of a text are markers while the text passes through something that only knows text.

What comes out is what went in, later and perhaps cut short, in other pieces. A marker comes out whole or, when the text
is cut inside it, as ordinary text.
"""

from __future__ import annotations

from collections import deque


class MarkedText:
    """One text on its way."""

    def __init__(self) -> None:
        self._fed = 0
        self._told = 0
        self._pending = ""
        self._marks: deque[tuple[int, str]] = deque()

    def fed(self, text: str, marker: str | None) -> None:
        """Note text that goes in; it ends with `marker` if there is one."""
        self._fed += len(text)
        if marker is not None:
            self._marks.append((self._fed - len(marker), marker))

    def released(self, text: str) -> list[tuple[str, bool]]:
        """What is certain once this came out: stretches of text, and markers (True), none of them empty."""
        if not self._marks and not self._pending:
            self._told += len(text)
            return [(text, False)] if text else []
        self._pending += text
        parts: list[tuple[str, bool]] = []
        while self._marks:
            start, marker = self._marks[0]
            self._tell(start - self._told, False, parts)
            if self._told < start or len(self._pending) < len(marker):
                return parts
            self._marks.popleft()
            self._tell(len(marker), True, parts)
        self._tell(len(self._pending), False, parts)
        return parts

    def rest(self) -> str:
        """The beginning of a marker that will not come out whole; afterwards a new text begins."""
        text, self._pending = self._pending, ""
        self._fed = self._told = 0
        self._marks.clear()
        return text

    def _tell(self, length: int, is_marker: bool, parts: list[tuple[str, bool]]) -> None:
        part, self._pending = self._pending[:length], self._pending[length:]
        self._told += len(part)
        if part:
            parts.append((part, is_marker))
