# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of drafting, and the drafting that copies."""

from __future__ import annotations

from typing import Protocol

from sparkpair.drafting.copy import CopyDrafter
from sparkpair.stream import Stream


class Drafting(Protocol):
    """Proposes tokens for running requests. Whatever it proposes, replies stay the same; only their speed changes."""

    def propose(self, stream: Stream, most: int) -> list[int]:
        """Up to `most` tokens that may follow the stream's history."""

    def forget(self, stream: Stream) -> None:
        """The stream has ended."""


class CopyDrafting:
    """Copy drafts for every request, at most `most` in a window; 0 turns them off."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._drafters: dict[int, CopyDrafter] = {}

    def propose(self, stream: Stream, most: int) -> list[int]:
        """See Drafting."""
        if min(most, self._most) <= 0:
            return []
        drafter = self._drafters.get(stream.slot)
        if drafter is None:
            drafter = self._drafters[stream.slot] = CopyDrafter(len(stream.job.request.prompt_ids))
        return drafter.propose(stream.history, min(most, self._most))

    def forget(self, stream: Stream) -> None:
        """See Drafting."""
        self._drafters.pop(stream.slot, None)
