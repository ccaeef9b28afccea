# SPDX-License-Identifier: Apache-2.0
"""Where a reply is led: what stands when the model wants to say something else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.chat.steering import Ids, Route, Steering
from sparkpair.request import Logits

CLOSE, STOP, OPEN, NAME, CALL_CLOSE, BLANK, WORD, FORM = 1, 2, 3, 4, 5, 6, 7, 8
CLOSING = (BLANK, CLOSE, BLANK)


class OnlyForm:
    """A form that lets nothing but its own token through, and says what it was asked."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def matcher(self) -> OnlyForm:
        return self

    def mask(self, logits: Logits) -> Logits:
        return numpy.where(numpy.arange(len(logits)) == FORM, logits, -numpy.inf).astype(numpy.float32)

    def accept(self, token: int) -> int:
        self.accepted.append(token)
        return token

    def drafts(self, proposed: Sequence[int], most: int) -> list[int]:
        return [token for token in proposed if token == FORM][:most]


def steering(
    *, inside: bool = True, budget: int | None = None, call: Ids = (), form: OnlyForm | None = None
) -> Steering:
    return Route(
        inside_thinking=inside,
        think_close=CLOSE,
        stop_ids=frozenset({STOP}),
        call_close=CALL_CLOSE,
        is_blank=lambda token: token == BLANK,
        closing=CLOSING,
        thinking_budget=budget,
        call=call,
        form=form,
    ).matcher()


def stands(led: Steering, wanted: Sequence[int]) -> list[int]:
    """What stands of a reply whose model wants to say `wanted`, up to its end mark."""
    said: list[int] = []
    for token in wanted:
        logits = numpy.zeros(9, numpy.float32)
        logits[token] = 1
        said.append(led.accept(int(led.mask(logits).argmax())))
        if said[-1] == STOP:
            break
    return said


FORCED: list[tuple[list[int], list[int]]] = [
    ([WORD, CLOSE, WORD, STOP, WORD], [WORD, CLOSE, OPEN, NAME, WORD]),
    ([WORD, CLOSE, BLANK, BLANK, WORD, WORD], [WORD, CLOSE, BLANK, BLANK, OPEN, NAME]),
    ([WORD, CLOSE, STOP, STOP, STOP], [WORD, CLOSE, OPEN, NAME, STOP]),
    ([WORD, CLOSE, OPEN, NAME, WORD], [WORD, CLOSE, OPEN, NAME, WORD]),
    ([WORD, CLOSE, BLANK, OPEN, WORD, WORD], [WORD, CLOSE, BLANK, OPEN, NAME, WORD]),
    ([WORD, CLOSE, OPEN, BLANK], [WORD, CLOSE, OPEN, NAME]),
    ([WORD, STOP, *[WORD] * 5], [WORD, *CLOSING, OPEN, NAME, WORD]),
    ([OPEN, NAME, CALL_CLOSE, BLANK, STOP], [OPEN, NAME, CALL_CLOSE, BLANK, STOP]),
    ([OPEN, NAME, CALL_CLOSE, WORD, STOP, *[WORD] * 4], [OPEN, NAME, CALL_CLOSE, WORD, *CLOSING, OPEN, NAME]),
]


@pytest.mark.parametrize(("wanted", "expected"), FORCED)
def test_answer_begins_with_the_forced_call(wanted: list[int], expected: list[int]) -> None:
    assert stands(steering(call=(OPEN, NAME)), wanted) == expected


def test_without_thinking_the_forced_call_is_the_beginning() -> None:
    assert stands(steering(inside=False, call=(OPEN, NAME)), [WORD, STOP, WORD, STOP]) == [OPEN, NAME, WORD, STOP]


BUDGETS: list[tuple[list[int], list[int]]] = [
    ([WORD] * 7, [WORD, WORD, *CLOSING, WORD, WORD]),
    ([WORD, WORD, CLOSE, WORD], [WORD, WORD, CLOSE, WORD]),
    ([WORD, CLOSE, WORD, WORD], [WORD, CLOSE, WORD, WORD]),
    ([WORD, WORD, STOP], [WORD, WORD, STOP]),
    ([WORD, WORD], [WORD, WORD]),
]


@pytest.mark.parametrize(("wanted", "expected"), BUDGETS)
def test_think_block_is_closed_at_its_last_token(wanted: list[int], expected: list[int]) -> None:
    assert stands(steering(budget=3), wanted) == expected


def test_budget_does_not_count_an_answer_without_thinking() -> None:
    assert stands(steering(inside=False, budget=2), [WORD] * 9) == [WORD] * 9


def test_closed_think_block_goes_on_with_the_forced_call() -> None:
    assert stands(steering(budget=2, call=(OPEN,)), [WORD] * 7) == [WORD, *CLOSING, OPEN, WORD, WORD]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([WORD, CLOSE, WORD, STOP], [WORD, CLOSE, FORM, FORM]),
        ([WORD, STOP, WORD, WORD, WORD], [WORD, *CLOSING, FORM]),
        ([OPEN, CALL_CLOSE, STOP, WORD, WORD, WORD], [OPEN, CALL_CLOSE, *CLOSING, FORM]),
    ],
)
def test_form_begins_after_the_think_block_and_sees_nothing_of_it(wanted: list[int], expected: list[int]) -> None:
    form = OnlyForm()
    assert stands(steering(form=form), wanted) == expected
    assert form.accepted == [token for token in expected if token == FORM]


def test_form_after_a_forced_opening() -> None:
    assert stands(steering(call=(OPEN,), form=OnlyForm()), [CLOSE, WORD, WORD]) == [CLOSE, OPEN, FORM]


@given(
    wanted=st.lists(st.integers(1, 8), max_size=20),
    inside=st.booleans(),
    budget=st.none() | st.integers(1, 8),
    call=st.sampled_from([(), (OPEN,), (OPEN, NAME)]),
    formed=st.booleans(),
    proposed=st.lists(st.integers(1, 8), max_size=6),
)
def test_drafts_that_are_certain_are_drawn_and_asking_for_drafts_changes_nothing(
    wanted: list[int], inside: bool, budget: int | None, call: Ids, formed: bool, proposed: list[int]
) -> None:
    forms = [OnlyForm() if formed else None for _ in range(2)]
    plain, asked = (steering(inside=inside, budget=budget, call=call, form=form) for form in forms)
    for token in wanted:
        drafts = asked.drafts(proposed, 3)
        assert len(drafts) <= max(3, len(proposed))
        found = stands(asked, [token])
        assert found == stands(plain, [token])
        if drafts and drafts != proposed[: len(drafts)]:
            assert found == [drafts[0]], "what is not the proposal's is certain"
