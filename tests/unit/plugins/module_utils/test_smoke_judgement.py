# SPDX-License-Identifier: Apache-2.0
"""What counts as a sane answer, and what is said of one that is not."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._smoke import (
    Reply,
    decode_rate,
    objections,
    repeated_unit,
)
from hypothesis import given
from hypothesis import strategies as st

SANE = Reply(
    content="I am ready.",
    finish_reason="stop",
    usage={"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    ranks=[{"rank": 0, "step": 9}, {"rank": 1, "step": 9}],
    first_s=0.2,
    finish_s=0.4,
)


def judged(**changes) -> str:
    return " ".join(objections(dataclasses.replace(SANE, **changes), 32, 2))


@pytest.mark.parametrize("content", ["I am ready.", "4", "OK", "好的，我准备好了。", "ja ja!", "1 2 3 4 5 6 7", "!!!"])
def test_a_sane_answer_passes(content):
    assert judged(content=content) == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "blank: ''"),
        (" \n\t", "blank"),
        ("!!!!!!!!!!", "nothing but one character repeated"),
        ("! ! ! ! ! !", "nothing but one character repeated"),
        ("the the the the the", "nothing but 'the ' repeated"),
        ("OKOKOKOKO", "nothing but 'OK' repeated"),
        ("\n\n!!\n!!!!!\n!!!!!", "repeated"),
    ],
)
def test_o12_a_collapsed_answer_is_refused_with_what_was_found(content, words):
    assert words in judged(content=content)


def test_reasoning_alone_is_no_answer():
    assert "only reasoned: 'Let me think'" in judged(content="", reasoning="Let me think")


@given(st.text(min_size=1, max_size=8).filter(lambda unit: unit.strip()), st.integers(8, 40))
def test_any_short_unit_over_and_over_is_found(unit, times):
    assert repeated_unit(unit * times) is not None


@given(st.text(st.characters(codec="ascii", categories=["L"]), min_size=8, max_size=60))
def test_what_is_found_makes_up_the_whole_text(text):
    unit = repeated_unit(text)
    assert unit is None or (unit * 60).startswith(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finish_reason": None}, "without a finish reason"),
        ({"finish_reason": "tool_calls"}, "'tool_calls'"),
        ({"finish_reason": "length"}, "'length' after 5 tokens, but 32 were allowed"),
        ({"usage": None}, "The usage is None"),
        ({"usage": {"prompt_tokens": 12, "completion_tokens": True, "total_tokens": 13}}, "without whole numbers"),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 5, "total_tokens": 5}}, "0 prompt tokens"),
        ({"usage": {"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12}}, "0 completion tokens"),
        ({"usage": {"prompt_tokens": 12, "completion_tokens": 33, "total_tokens": 45}}, "but 1 to 32 were possible"),
        ({"usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 18}}, "12 + 5 tokens, but 18"),
        ({"ranks": None}, "ranks 0 to 1 with their steps, but names None"),
        ({"ranks": [{"rank": 0, "step": 9}]}, "ranks 0 to 1"),
        ({"ranks": [{"rank": 0, "step": 9}, {"rank": 0, "step": 9}]}, "ranks 0 to 1"),
        ({"ranks": [{"rank": 0, "step": 9}, {"rank": 1}]}, "ranks 0 to 1"),
        ({"ranks": [{"rank": 0, "step": 9}, {"rank": 1, "step": 8}]}, "rank 0 at step 9, rank 1 at step 8"),
    ],
)
def test_what_does_not_fit_the_request_is_refused_with_what_was_found(changes, words):
    assert words in judged(**changes)


def test_a_budget_that_is_used_up_is_plausible():
    usage = {"prompt_tokens": 12, "completion_tokens": 32, "total_tokens": 44}
    assert judged(finish_reason="length", usage=usage) == ""


def test_every_objection_is_told_at_once():
    assert len(objections(Reply(), 32, 2)) == 4


def test_an_engine_that_reports_no_ranks_can_be_asked():
    assert objections(dataclasses.replace(SANE, ranks=None), 32, None) == []


def test_the_rate_counts_what_came_after_the_first_text():
    assert decode_rate(SANE) == 20.0
    assert decode_rate(dataclasses.replace(SANE, finish_s=0.2)) is None
