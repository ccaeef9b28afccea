# SPDX-License-Identifier: Apache-2.0
"""Where a reply is led: decided token by token, so that no grouping of tokens moves the place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.chat.steering import Ids, Route, Steering

CLOSE, STOP, OPEN, NAME, CALL_CLOSE, BLANK, WORD = 1, 2, 3, 4, 5, 6, 7
CLOSING = (BLANK, CLOSE, BLANK)


def steering(*, inside: bool = True, budget: int | None = None, call: Ids = ()) -> Steering:
    route = Route(inside, CLOSE, frozenset({STOP}), CALL_CLOSE, CLOSING, budget, call)
    return Steering(route, lambda token: token == BLANK)


def follow(led: Steering, events: Sequence[Sequence[int]]) -> tuple[list[int], Ids]:
    """What stands of a reply up to the first turn, and what is put in there."""
    stands = list(led.start)
    for event in events:
        kept, put_in = led.follow(event)
        stands += kept
        if put_in:
            return stands, put_in
    return stands, ()


FORCED: list[tuple[list[int], tuple[list[int], Ids]]] = [
    ([WORD, CLOSE, WORD, STOP], ([WORD, CLOSE], (OPEN, NAME))),
    ([WORD, CLOSE, BLANK, BLANK, WORD], ([WORD, CLOSE, BLANK, BLANK], (OPEN, NAME))),
    ([WORD, CLOSE, STOP], ([WORD, CLOSE], (OPEN, NAME))),
    ([WORD, CLOSE, OPEN, NAME, WORD], ([WORD, CLOSE, OPEN, NAME, WORD], ())),
    ([WORD, CLOSE, BLANK, OPEN, WORD], ([WORD, CLOSE, BLANK, OPEN], (NAME,))),
    ([WORD, CLOSE, OPEN, BLANK], ([WORD, CLOSE, OPEN], (NAME,))),
    ([WORD, STOP], ([WORD], (*CLOSING, OPEN, NAME))),
    ([OPEN, NAME, CALL_CLOSE, BLANK, STOP], ([OPEN, NAME, CALL_CLOSE, BLANK, STOP], ())),
    ([OPEN, NAME, CALL_CLOSE, WORD, STOP], ([OPEN, NAME, CALL_CLOSE, WORD], (*CLOSING, OPEN, NAME))),
]


@pytest.mark.parametrize(("reply", "expected"), FORCED)
def test_answer_begins_with_the_forced_call(reply: list[int], expected: tuple[list[int], Ids]) -> None:
    assert follow(steering(call=(OPEN, NAME)), [reply]) == expected
    assert follow(steering(call=(OPEN, NAME)), [[token] for token in reply]) == expected


def test_without_thinking_the_forced_call_is_the_beginning() -> None:
    led = steering(inside=False, call=(OPEN, NAME))
    assert follow(led, [[WORD, STOP]]) == ([OPEN, NAME, WORD, STOP], ())


BUDGETS: list[tuple[list[int], tuple[list[int], Ids]]] = [
    ([WORD, WORD, WORD, WORD], ([WORD, WORD], CLOSING)),
    ([WORD, WORD, CLOSE, WORD], ([WORD, WORD, CLOSE, WORD], ())),
    ([WORD, CLOSE, WORD, WORD], ([WORD, CLOSE, WORD, WORD], ())),
    ([WORD, WORD, STOP], ([WORD, WORD, STOP], ())),
    ([WORD, WORD], ([WORD, WORD], ())),
]


@pytest.mark.parametrize(("reply", "expected"), BUDGETS)
def test_think_block_is_closed_at_its_last_token(reply: list[int], expected: tuple[list[int], Ids]) -> None:
    assert follow(steering(budget=3), [reply]) == expected
    assert follow(steering(budget=3), [[token] for token in reply]) == expected


def test_budget_does_not_count_an_answer_without_thinking() -> None:
    assert follow(steering(inside=False, budget=2), [[WORD] * 9]) == ([WORD] * 9, ())


def test_closed_think_block_goes_on_with_the_forced_call() -> None:
    assert follow(steering(budget=2, call=(OPEN,)), [[WORD] * 9]) == ([WORD], (*CLOSING, OPEN))


@given(
    reply=st.lists(st.integers(1, 7), max_size=20),
    bounds=st.lists(st.integers(0, 20), max_size=4),
    inside=st.booleans(),
    budget=st.none() | st.integers(1, 8),
    call=st.sampled_from([(), (OPEN,), (OPEN, NAME)]),
)
def test_the_place_does_not_depend_on_how_tokens_arrive(
    reply: list[int], bounds: list[int], inside: bool, budget: int | None, call: Ids
) -> None:
    places = [0, *sorted(bounds), len(reply)]
    groups = [reply[a:b] for a, b in itertools.pairwise(places)]
    grouped = follow(steering(inside=inside, budget=budget, call=call), groups)
    assert grouped == follow(steering(inside=inside, budget=budget, call=call), [[token] for token in reply])
