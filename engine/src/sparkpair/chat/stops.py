# SPDX-License-Identifier: Apache-2.0
"""Stop strings over a text that arrives in pieces: the text ends right before the first match.

Each stop string is followed character by character with its own prefix table, so that the result depends on
the text alone and never on where it was cut into pieces. The match that completes first wins; of several
that complete at the same character, the longest.
"""

from __future__ import annotations

from collections.abc import Sequence


def _prefix_table(pattern: str) -> list[int]:
    """For every prefix of `pattern`, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return table


class StopMatcher:
    """Releases text that cannot belong to a match, and stops at the first match."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty strings; none at all lets everything through."""
        self._stops = [(stop, _prefix_table(stop)) for stop in stops]
        self._progress = [0] * len(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certainly not part of a match. After a match (`matched` is set), always empty."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        for index in range(len(self._held), len(buffer)):
            self._advance(buffer[index])
            if self.matched is not None:
                self._held = ""
                return buffer[: index + 1 - len(self.matched)]
        keep = max(self._progress)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The text held back for a match that did not come, and a fresh start."""
        text, self._held = self._held, ""
        self._progress = [0] * len(self._stops)
        return text

    def _advance(self, character: str) -> None:
        for number, (stop, table) in enumerate(self._stops):
            length = self._progress[number]
            while length and stop[length] != character:
                length = table[length - 1]
            if stop[length] == character:
                length += 1
            self._progress[number] = length
            if length == len(stop) and (self.matched is None or length > len(self.matched)):
                self.matched = stop
