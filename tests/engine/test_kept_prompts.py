# SPDX-License-Identifier: Apache-2.0
"""Which prompts are kept and which go: limits hold at every instant, and with room nobody loses a prefix."""

from __future__ import annotations

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair.cache.prompts import KeptPrompts, common_length
from sparkpair.grid import GRID

LOGITS = numpy.zeros((1, 4), dtype=numpy.float32)


def store(entries: int = 100, room: int = 10**9) -> KeptPrompts:
    return KeptPrompts(most_entries=entries, most_bytes=room, entry_bytes=100, token_bytes=1)


def keep(prompts: KeptPrompts, tokens: list[int]) -> list[int]:
    """Keep a whole prompt as the engine does: find, then add its last block and its end."""
    prompts.find(tokens)
    gone = []
    for length in ((len(tokens) - 1) // GRID * GRID, len(tokens)):
        name, going = prompts.add(tokens[:length])
        gone += going
        if length == len(tokens):
            prompts.complete(name, LOGITS)
    return gone


def prompt(conversation: int, length: int) -> list[int]:
    return [conversation, *range(1000, 1000 + length - 1)]


def test_an_identical_prompt_is_found_whole_and_an_extended_one_at_its_last_block() -> None:
    prompts = store()
    keep(prompts, prompt(1, 200))
    whole = prompts.find(prompt(1, 200))
    assert whole is not None
    assert len(whole.tokens) == 200
    extended = prompts.find(prompt(1, 300))
    assert extended is not None
    assert len(extended.tokens) == 192


def test_an_unfinished_prompt_is_not_found_whole() -> None:
    prompts = store()
    prompts.add(prompt(1, 200))
    assert prompts.find(prompt(1, 200)) is None


def test_a_prompt_that_differs_in_one_token_is_not_resumed_past_it() -> None:
    prompts = store()
    keep(prompts, prompt(1, 200))
    other = prompt(1, 300)
    other[100] += 1
    assert prompts.find(other) is None
    assert prompts.divergence(other) == 64


def test_superseded_entries_go_before_a_conversation_that_is_older() -> None:
    prompts = store(entries=6)
    keep(prompts, prompt(1, 200))
    for length in (100, 200, 300, 400, 500):
        keep(prompts, prompt(2, length))
    found = prompts.find(prompt(1, 200))
    assert found is not None
    assert len(found.tokens) == 200
    latest = prompts.find(prompt(2, 500))
    assert latest is not None
    assert len(latest.tokens) == 500


def test_a_beginning_that_several_conversations_use_is_not_superseded() -> None:
    prompts = store(entries=4)
    shared = prompt(7, 65)
    keep(prompts, [*shared, 998])
    for conversation in range(20):
        keep(prompts, [*shared, conversation, *range(200)])
        found = prompts.find([*shared, 999, *range(50)])
        assert found is not None
        assert len(found.tokens) == 64


def test_nothing_is_kept_where_nothing_may_be_kept() -> None:
    assert store(entries=0).add([1, 2]) == (0, [])
    assert store(room=50).add([1, 2]) == (0, [])


def test_the_same_prompt_is_kept_once() -> None:
    prompts = store()
    keep(prompts, prompt(1, 200))
    count = prompts.count
    keep(prompts, prompt(1, 200))
    assert prompts.count == count


Turns = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 400)), min_size=1, max_size=40)


@given(Turns, st.integers(0, 12), st.integers(0, 4000))
@settings(max_examples=150, deadline=None)
def test_the_limits_hold_at_every_instant_and_names_are_dropped_once(
    turns: list[tuple[int, int]], entries: int, room: int
) -> None:
    prompts = store(entries, room)
    alive: set[int] = set()
    lengths = dict.fromkeys(range(5), 0)
    for conversation, more in turns:
        lengths[conversation] += more
        tokens = prompt(conversation, lengths[conversation])
        entry = prompts.find(tokens)
        assert entry is None or entry.name in alive
        name, going = prompts.add(tokens)
        assert set(going) <= alive
        alive -= set(going)
        if name:
            assert name not in alive
            alive.add(name)
        assert len(alive) == prompts.count <= entries
        assert prompts.bytes <= room


@given(Turns)
@settings(max_examples=100, deadline=None)
def test_with_room_every_conversation_resumes_where_it_last_stood(turns: list[tuple[int, int]]) -> None:
    prompts = store()
    lengths = dict.fromkeys(range(5), 0)
    for conversation, more in turns:
        before = lengths[conversation]
        lengths[conversation] += more
        tokens = prompt(conversation, lengths[conversation])
        entry = prompts.find(tokens)
        assert (0 if entry is None else len(entry.tokens)) >= (before - 1) // GRID * GRID
        assert keep(prompts, tokens) == []


@given(st.lists(st.integers(0, 1), max_size=12), st.lists(st.integers(0, 1), max_size=12))
def test_the_common_beginning_is_the_longest(first: list[int], second: list[int]) -> None:
    length = common_length(numpy.array(first, dtype=numpy.int64), numpy.array(second, dtype=numpy.int64))
    assert first[:length] == second[:length]
    assert first[length : length + 1] != second[length : length + 1] or length == min(len(first), len(second))
