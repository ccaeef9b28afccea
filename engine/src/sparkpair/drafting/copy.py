# SPDX-License-Identifier: Apache-2.0
"""Copy drafts: what followed the last tokens where they stood before, in the prompt or in the reply itself.

The last 8 tokens are looked up in everything before them. A place inside the reply must match 16 tokens, so that
ordinary repetition does not trigger. The latest place with enough tokens after it is taken, else the earliest.
"""

from __future__ import annotations

from collections.abc import Sequence

MATCH = 8
REPLY_MATCH = 16


class CopyDrafter:
    """An index over one request's tokens: every run of 8 tokens and where it ends. Grows with the reply."""

    def __init__(self, prompt_length: int) -> None:
        self._prompt_length = prompt_length
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0

    def propose(self, history: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow `history` (prompt and reply, the pending token last)."""
        length = len(history)
        self._index(history)
        if most <= 0 or length <= MATCH:
            return []
        places = [end for end in self._ends.get(tuple(history[-MATCH:]), []) if self._usable(history, end)]
        if not places:
            return []
        enough = [end for end in places if length - end >= most]
        start = enough[-1] if enough else places[0]
        return list(history[start : start + most])

    def _index(self, history: Sequence[int]) -> None:
        """Enter every run that ends before the last token; the run at the end is what is looked up."""
        for end in range(max(self._indexed, MATCH), len(history)):
            self._ends.setdefault(tuple(history[end - MATCH : end]), []).append(end)
        self._indexed = max(self._indexed, len(history))

    def _usable(self, history: Sequence[int], end: int) -> bool:
        if end - MATCH < self._prompt_length:
            return True
        return end >= REPLY_MATCH and list(history[end - REPLY_MATCH : end]) == list(history[-REPLY_MATCH:])
