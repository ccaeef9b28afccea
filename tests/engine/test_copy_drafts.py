# SPDX-License-Identifier: Apache-2.0
"""Copy drafts: what is found, what is not, and which of several places is taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sparkpair.drafting.copy import MATCH, REPLY_MATCH, CopyDrafter

PASSAGE = list(range(100, 140))


def propose(prompt: list[int], reply: list[int], most: int = 15) -> list[int]:
    return CopyDrafter(len(prompt)).propose(prompt + reply, most)


def test_a_reply_that_quotes_the_prompt_is_continued_from_it() -> None:
    assert propose([1, 2, *PASSAGE, 3], PASSAGE[5 : 5 + MATCH], 4) == PASSAGE[13:17]


def test_seven_tokens_are_no_quotation() -> None:
    assert propose([1, 2, *PASSAGE, 3], [9, *PASSAGE[5 : 5 + MATCH - 1]]) == []


def test_the_latest_place_with_enough_after_it_is_taken() -> None:
    quote = PASSAGE[:MATCH]
    prompt = [*quote, 1, 2, 3, *quote, 4, 5, 6, *quote, 7]
    assert propose(prompt, quote, 3) == [7, *quote[:2]]
    assert propose(prompt, quote, 10) == [4, 5, 6, *quote[:7]]


def test_the_earliest_place_is_taken_where_none_has_enough_after_it() -> None:
    quote = PASSAGE[:MATCH]
    assert propose([*quote, 1, *quote, 2], quote, 15) == [1, *quote, 2, *quote[:5]]


def test_repetition_inside_the_reply_needs_a_longer_match() -> None:
    cycle = list(range(200, 200 + MATCH + 2))
    assert propose([1, 2, 3], cycle + cycle[:MATCH]) == []
    longer = list(range(200, 200 + REPLY_MATCH + 2))
    assert propose([1, 2, 3], longer + longer[:REPLY_MATCH], 2) == longer[REPLY_MATCH : REPLY_MATCH + 2]


def test_the_end_of_the_history_does_not_match_itself() -> None:
    assert propose(PASSAGE, [1]) == []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=80), st.integers(1, 60), st.integers(0, 15))
def test_an_index_that_grew_with_the_reply_finds_what_a_fresh_one_finds(
    history: list[int], prompt: int, most: int
) -> None:
    prompt = min(prompt, len(history))
    grown = CopyDrafter(prompt)
    for length in range(prompt, len(history) + 1):
        found = grown.propose(history[:length], most)
        assert found == CopyDrafter(prompt).propose(history[:length], most)
        assert len(found) <= most
