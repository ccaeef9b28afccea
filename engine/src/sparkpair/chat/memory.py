# SPDX-License-Identifier: Apache-2.0
"""Remembers the reasoning that led to calls, because many clients send the calls back without it.

The next prompt then reads as the model left it, which keeps both its train of thought and the kept prompt. Bounded in
number, size and age; calls are found by their ids, which are random and told to nobody else.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

MOST_REPLIES = 1024
MOST_CHARACTERS = 64 * 2**20
OLDEST_S = 24 * 3600.0


class ReasoningMemory:
    """The reasoning of the newest replies with calls."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._replies: OrderedDict[str, tuple[float, tuple[str, ...], str]] = OrderedDict()
        self._first_id: dict[str, str] = {}
        self._characters = 0

    def remember(self, call_ids: Sequence[str], reasoning: str) -> None:
        """Keep the reasoning of a reply under the ids of its calls."""
        if not reasoning or not call_ids:
            return
        self._replies[call_ids[0]] = (self._clock(), tuple(call_ids), reasoning)
        self._first_id.update(dict.fromkeys(call_ids, call_ids[0]))
        self._characters += len(reasoning)
        while len(self._replies) > MOST_REPLIES or self._characters > MOST_CHARACTERS:
            self._forget_oldest()
        self._forget_expired()

    def restore(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages, with what is remembered wherever a past reply has calls and no reasoning: such a one is
        another, as the caller's data is never changed.
        """
        self._forget_expired()
        return [self._restored(message) for message in messages]

    def _restored(self, message: dict[str, Any]) -> dict[str, Any]:
        if "reasoning_content" not in message:
            for call in message.get("tool_calls") or ():
                if (first := self._first_id.get(call["id"])) is not None:
                    return {**message, "reasoning_content": self._replies[first][2]}
        return message

    def _forget_expired(self) -> None:
        oldest = self._clock() - OLDEST_S
        while self._replies and next(iter(self._replies.values()))[0] < oldest:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, call_ids, reasoning) = self._replies.popitem(last=False)
        self._characters -= len(reasoning)
        for call_id in call_ids:
            del self._first_id[call_id]
