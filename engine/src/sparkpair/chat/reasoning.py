# SPDX-License-Identifier: Apache-2.0
"""Which part of a reply a token belongs to: the think block or the answer.

The split looks at ids, never at text: only the marker `</think>` itself ends the think block, and the same
characters spelt by ordinary tokens stay what they are.
"""

from __future__ import annotations

from typing import Literal

Channel = Literal["reasoning", "content"]

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


class ThinkSplitter:
    """Follows one reply from its first token."""

    def __init__(self, open_id: int | None, close_id: int | None, *, inside: bool) -> None:
        """`inside`: the prompt opened the think block and did not close it. An id of None is a marker that
        does not exist.
        """
        self._structure = {open_id, close_id} - {None}
        self._close_id = close_id
        self.channel: Channel = "reasoning" if inside else "content"
        self.reasoning_tokens = 0

    def place(self, token_id: int) -> Channel | None:
        """The part a token's text belongs to, or None for a think marker, which has no text.

        Counts the tokens of the think block, its closing marker included.
        """
        if self.channel == "reasoning":
            self.reasoning_tokens += 1
        if token_id not in self._structure:
            return self.channel
        if token_id == self._close_id:
            self.channel = "content"
        return None
