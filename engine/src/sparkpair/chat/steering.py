# SPDX-License-Identifier: Apache-2.0
"""Where a reply must go on differently from what the model says: a think block that has used up its tokens is closed,
an answer that must call a function begins with the call, and an answer that must have a form keeps to it.

A route is the request's constraint: the engine asks it at every token it draws. Only ids are looked at, one after the
other, so the same tokens stand however they were drafted, and whatever runs beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from sparkpair.request import Constraint, Logits, Matcher

Ids = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Implements request.Constraint. What is asked of a reply.

    `thinking_budget`: the number of the token that closes the think block at the latest; None without a limit.
    `closing` are the ids that close it. `call` are the ids with which the answer must begin, after blanks; empty when
    it is free. `form` is what the answer, or what comes after `call`, has to follow. `is_blank` tells whether a token
    is nothing but blanks.
    """

    inside_thinking: bool
    think_close: int | None
    stop_ids: frozenset[int]
    call_close: int | None
    is_blank: Callable[[int], bool]
    closing: Ids = ()
    thinking_budget: int | None = None
    call: Ids = ()
    form: Constraint | None = None

    @property
    def free(self) -> bool:
        """Whether nothing is asked."""
        budget = self.inside_thinking and self.thinking_budget is not None
        return not (budget or self.call or self.form)

    def matcher(self) -> Steering:
        """See request.Constraint."""
        return Steering(self)


class Steering:
    """Implements request.Matcher. Follows one reply along its route."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._thinking = route.inside_thinking
        self._count = 0
        self._after_call = False
        # Ids that stand next, whatever is drawn.
        self._certain: list[int] = []
        # What is left of the call that the answer begins with.
        self._missing = list(route.call)
        self._form: Matcher | None = None
        if not self._thinking:
            self._put_in(route.call)

    def mask(self, logits: Logits) -> Logits:
        """See request.Matcher."""
        form = self._form_now()
        return logits if form is None else form.mask(logits)

    def accept(self, token: int) -> int:
        """See request.Matcher."""
        self._count += 1
        if self._certain:
            return self._follow(self._certain.pop(0))
        if (form := self._form_now()) is not None:
            return form.accept(token)
        put_in = self._turn_at(token)
        if not put_in:
            return self._follow(token)
        self._put_in(put_in)
        return self._follow(self._certain.pop(0))

    def drafts(self, proposed: Sequence[int], most: int) -> list[int]:
        """See request.Matcher."""
        if self._certain:
            return self._certain[:most]
        if (form := self._form_now()) is not None:
            return form.drafts(proposed, most)
        if self._thinking and self._must_go_on():
            # Behind the block's end the form begins, of which nothing is known yet.
            ends = {self._route.think_close, *self._route.stop_ids}
            return list(proposed[: next((i for i, token in enumerate(proposed) if token in ends), len(proposed)) + 1])
        return [] if self._missing else list(proposed)

    def _form_now(self) -> Matcher | None:
        """The matcher of the form, where the reply has come to it."""
        if self._route.form is None or self._thinking or self._missing or self._certain:
            return None
        if self._form is None:
            self._form = self._route.form.matcher()
        return self._form

    def _must_go_on(self) -> bool:
        """Whether the reply may not end in the think block."""
        return self._route.form is not None or bool(self._missing)

    def _turn_at(self, token: int) -> Ids:
        """The ids that stand in the place of `token` and after it, if it may not stand."""
        route = self._route
        if self._thinking:
            if token == route.think_close:
                return ()
            if token in route.stop_ids:
                called = self._after_call and bool(route.call)
                return self._closing() if self._must_go_on() and not called else ()
            return self._closing() if self._count == route.thinking_budget else ()
        if self._missing and token != self._missing[0]:
            may_wait = len(self._missing) == len(route.call) and route.is_blank(token)
            return () if may_wait else tuple(self._missing)
        return ()

    def _closing(self) -> Ids:
        return self._route.closing + tuple(self._missing)

    def _put_in(self, ids: Ids) -> None:
        self._certain += ids

    def _follow(self, token: int) -> int:
        """Take note of a token that stands."""
        if self._thinking:
            if token == self._route.think_close:
                self._thinking = False
            blank = self._route.is_blank(token)
            self._after_call = token == self._route.call_close or (self._after_call and blank)
        elif self._missing and token == self._missing[0]:
            self._missing.pop(0)
        return token
