# SPDX-License-Identifier: Apache-2.0
"""Where a reply must go on differently from what the model said: a think block that has used up its tokens is closed,
and an answer that must call a function begins with the call.

Only ids are looked at, one after the other, so the place does not depend on how they arrive. Whoever generates takes
the ids that `follow` lets through, and at a turn lets the model go on behind the ids that are put in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

Ids = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """What is asked of a reply.

    `thinking_budget`: the number of the token that closes the think block at the latest; None without a limit.
    `closing` are the ids that close it. `call` are the ids with which the answer must begin, after blanks; empty when
    it is free.
    """

    inside_thinking: bool
    think_close: int | None
    stop_ids: frozenset[int]
    call_close: int | None
    closing: Ids = ()
    thinking_budget: int | None = None
    call: Ids = ()


class Steering:
    """Follows one reply along its route."""

    def __init__(self, route: Route, is_blank: Callable[[int], bool]) -> None:
        """`is_blank` tells whether a token is nothing but blanks."""
        self._route = route
        self._is_blank = is_blank
        self._thinking = route.inside_thinking
        self._missing = list(route.call)
        self._count = 0
        self._after_call = False

    @property
    def start(self) -> Ids:
        """What the reply must begin with, before the model says anything."""
        return () if self._thinking else self._take_missing()

    @property
    def free(self) -> bool:
        """Whether nothing can be asked of the reply any more."""
        return not self._missing and not (self._thinking and self._route.thinking_budget is not None)

    def follow(self, token_ids: Sequence[int]) -> tuple[Sequence[int], Ids]:
        """The ids that stand, and, when the model must be interrupted behind them, the ids to go on with."""
        if self.free:
            return token_ids, ()
        for index, token_id in enumerate(token_ids):
            if put_in := self._turn_at(token_id):
                return token_ids[:index], put_in
        return token_ids, ()

    def _turn_at(self, token_id: int) -> Ids:
        self._count += 1
        if self._thinking:
            return self._think(token_id)
        if self._missing and token_id == self._missing[0]:
            self._missing.pop(0)
        elif self._missing and not (len(self._missing) == len(self._route.call) and self._is_blank(token_id)):
            return self._take_missing()
        return ()

    def _think(self, token_id: int) -> Ids:
        if token_id == self._route.think_close:
            self._thinking = False
            return ()
        if token_id in self._route.stop_ids:
            return () if not self._missing or self._after_call else self._close()
        if self._count == self._route.thinking_budget:
            return self._close()
        self._after_call = token_id == self._route.call_close or (self._after_call and self._is_blank(token_id))
        return ()

    def _close(self) -> Ids:
        self._thinking = False
        return self._route.closing + self._take_missing()

    def _take_missing(self) -> Ids:
        missing = tuple(self._missing)
        self._missing.clear()
        return missing
