# SPDX-License-Identifier: Apache-2.0
"""Which prompts are kept and which go: the limit holds at every instant, and with room nobody loses a prefix."""

from __future__ import annotations

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair.cache.prompts import Entry, KeptPrompts, common_length
from sparkpair.grid import GRID

LOGITS = numpy.zeros((1, 4), dtype=numpy.float32)


class Store(KeptPrompts):
    """Kept prompts that remember which of them have gone."""

    def __init__(self, entries: int = 100) -> None:
        self.lost: list[Entry] = []
        super().__init__(entries, self.lost.append)


def keep(prompts: KeptPrompts, tokens: list[int]) -> None:
    """Keep a whole prompt as the engine does: find, then add its last block and its end."""
    prompts.find(tokens)
    for length in ((len(tokens) - 1) // GRID * GRID, len(tokens)):
        name = prompts.add(tokens[:length], extent=1)
        if length == len(tokens):
            prompts.complete(name, LOGITS)


def prompt(conversation: int, length: int) -> list[int]:
    return [conversation, *range(1000, 1000 + length - 1)]


def length_of(entry: Entry | None) -> int:
    return 0 if entry is None else len(entry.tokens)


def test_an_identical_prompt_is_found_whole_and_an_extended_one_at_its_last_block() -> None:
    prompts = Store()
    keep(prompts, prompt(1, 200))
    assert length_of(prompts.find(prompt(1, 200))) == 200
    assert length_of(prompts.find(prompt(1, 300))) == 192


def test_an_unfinished_prompt_is_not_found_whole() -> None:
    prompts = Store()
    prompts.add(prompt(1, 200), extent=1)
    assert prompts.find(prompt(1, 200)) is None


def test_a_prompt_that_differs_in_one_token_is_not_resumed_past_it() -> None:
    prompts = Store()
    keep(prompts, prompt(1, 200))
    other = prompt(1, 300)
    other[100] += 1
    assert prompts.find(other) is None
    assert prompts.divergence(other) == 64


def test_superseded_entries_go_before_a_conversation_that_is_older() -> None:
    prompts = Store(6)
    keep(prompts, prompt(1, 200))
    for length in (100, 200, 300, 400, 500):
        keep(prompts, prompt(2, length))
    assert length_of(prompts.find(prompt(1, 200))) == 200
    assert length_of(prompts.find(prompt(2, 500))) == 500


def test_the_end_of_a_prompt_does_not_supersede_the_block_at_which_the_next_turn_resumes() -> None:
    prompts = Store(4)
    for conversation in (1, 2):
        keep(prompts, prompt(conversation, 200))
    keep(prompts, prompt(3, 200))
    assert [length_of(prompts.find(prompt(conversation, 300))) for conversation in (2, 3)] == [192, 192]
    assert {entry.tokens[0] for entry in prompts.lost} == {1}


def test_a_beginning_that_several_conversations_use_is_not_superseded() -> None:
    prompts = Store(4)
    shared = prompt(7, 65)
    keep(prompts, [*shared, 998])
    for conversation in range(20):
        keep(prompts, [*shared, conversation, *range(200)])
        assert length_of(prompts.find([*shared, 999, *range(50)])) == 64


def test_a_beginning_that_a_short_question_resumed_at_is_not_superseded() -> None:
    """Such a question adds nothing to what is kept that could say so later."""
    prompts = Store()
    shared = prompt(7, 65)
    keep(prompts, [*shared, 998])
    keep(prompts, [*shared, 1, *range(200)])
    (beginning,) = (entry for entry in prompts.entries if len(entry.tokens) == 64)
    assert beginning.superseded
    assert prompts.find([*shared, 999, *range(10)]) is beginning
    assert not beginning.superseded


def test_nothing_is_kept_where_nothing_may_be_kept() -> None:
    assert Store(0).add([1, 2], extent=1) == 0


def test_the_same_prompt_is_kept_once() -> None:
    prompts = Store()
    keep(prompts, prompt(1, 200))
    count = prompts.count
    keep(prompts, prompt(1, 200))
    assert prompts.count == count


Turns = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 400)), min_size=1, max_size=40)


@given(Turns, st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_the_limit_holds_at_every_instant_and_names_go_once(turns: list[tuple[int, int]], entries: int) -> None:
    prompts = Store(entries)
    alive: set[int] = set()
    lengths = dict.fromkeys(range(5), 0)
    for conversation, more in turns:
        lengths[conversation] += more
        tokens = prompt(conversation, lengths[conversation])
        entry = prompts.find(tokens)
        assert entry is None or entry.name in alive
        name = prompts.add(tokens, extent=1)
        going = {entry.name for entry in prompts.lost}
        prompts.lost.clear()
        assert going <= alive
        alive -= going
        if name:
            assert name not in alive
            alive.add(name)
        assert len(alive) == prompts.count <= entries


@given(Turns)
@settings(max_examples=100, deadline=None)
def test_with_room_every_conversation_resumes_where_it_last_stood(turns: list[tuple[int, int]]) -> None:
    prompts = Store()
    lengths = dict.fromkeys(range(5), 0)
    for conversation, more in turns:
        before = lengths[conversation]
        lengths[conversation] += more
        tokens = prompt(conversation, lengths[conversation])
        assert length_of(prompts.find(tokens)) >= (before - 1) // GRID * GRID
        keep(prompts, tokens)
    assert prompts.lost == []


@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=12))
def test_the_common_beginning_is_the_longest(first: list[int], second: list[int]) -> None:
    length = common_length(numpy.array(first, dtype=numpy.int64), numpy.array(second, dtype=numpy.int64))
    assert first[:length] == second[:length]
    assert first[length : length + 1] != second[length : length + 1] or length == min(len(first), len(second))
