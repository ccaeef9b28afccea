# SPDX-License-Identifier: Apache-2.0
"""A reply's ids to text: nothing depends on where the ids were cut, nothing is lost, and no half character
is shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sparkpair.chat.decoder import ReplyDecoder, TextPiece
from sparkpair.chat.detokenize import Utf8Stream
from sparkpair.chat.stops import StopMatcher
from sparkpair.chat.tokenizer import TextTokenizer

VOCABULARY = 1536


def cut(values: Sequence[Any], places: list[int]) -> list[Sequence[Any]]:
    """Cut a sequence into consecutive pieces at the given places."""
    bounds = [0, *sorted(min(place, len(values)) for place in places), len(values)]
    return [values[a:b] for a, b in itertools.pairwise(bounds)]


places = st.lists(st.integers(0, 60), max_size=12)
# A small alphabet, so that stop strings are met often and partly.
letters = st.text("abc", max_size=40)
stop_strings = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@given(data=st.binary(max_size=60), places=places)
@example(data="ď삼👋".encode(), places=list(range(12)))
def test_text_of_any_bytes_is_the_same_however_they_are_cut(data: bytes, places: list[int]) -> None:
    stream = Utf8Stream()
    pieces = [stream.feed(piece) for piece in cut(data, places)]
    assert "".join(pieces) + stream.flush() == data.decode(errors="replace")


@given(text=st.text(max_size=20))
def test_no_half_character_is_ever_shown(text: str) -> None:
    stream = Utf8Stream()
    shown = ""
    for byte in text.encode():
        shown += stream.feed(bytes([byte]))
        assert text.startswith(shown)
    assert shown + stream.flush() == text


def test_bytes_that_cannot_become_a_character_do_not_wait() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"a\xe2\x82") == "a"
    assert stream.feed(b"b") == "\ufffdb"


def expected_cut(text: str, stops: Sequence[str]) -> str:
    """The text before the match that completes first, found by looking at every prefix."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - max(map(len, matches))]
    return text


@given(text=letters, stops=stop_strings, places=places)
def test_stop_cuts_before_the_first_complete_match_however_the_text_is_cut(
    text: str, stops: list[str], places: list[int]
) -> None:
    matcher = StopMatcher(stops)
    released = "".join(matcher.feed(piece) for piece in cut(text, places))
    if matcher.matched is None:
        released += matcher.flush()
    assert released == expected_cut(text, stops)
    assert (matcher.matched is not None) == any(stop in text for stop in stops)


@given(text=letters, stops=stop_strings)
def test_only_text_that_may_begin_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    released = ""
    for index, character in enumerate(text):
        released += matcher.feed(character)
        if matcher.matched is not None:
            return
        held = text[len(released) : index + 1]
        assert released + held == text[: index + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_text_after_a_match_is_dropped() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("one ENDtwo") == "one "
    assert matcher.feed("three") == ""
    assert matcher.matched == "END"


def whole(decoder: ReplyDecoder, groups: Sequence[Sequence[int]]) -> dict[str, str]:
    """The reply's text by part, for ids that arrive in these groups."""
    pieces: list[TextPiece] = []
    for group in groups:
        pieces += decoder.feed(group)
    pieces += decoder.finish(out_of_tokens=False)
    assert all(piece.text for piece in pieces)
    order = [piece.channel for piece in pieces]
    assert order == sorted(order, reverse=True), "reasoning never follows content"
    return {part: "".join(p.text for p in pieces if p.channel == part) for part in ("reasoning", "content")}


@given(
    ids=st.lists(st.one_of(st.integers(0, VOCABULARY - 1), st.integers(64, 110)), max_size=60),
    places=places,
    stops=st.lists(st.text("abcde t", min_size=1, max_size=3), max_size=3),
    inside=st.booleans(),
    split=st.booleans(),
)
def test_reply_is_the_same_however_its_ids_are_grouped(
    tokenizer: TextTokenizer, ids: list[int], places: list[int], stops: list[str], inside: bool, split: bool
) -> None:
    stop_ids = frozenset({tokenizer.marker_ids["<|user|>"]})

    def decoder() -> ReplyDecoder:
        return ReplyDecoder(
            tokenizer, stop_ids=stop_ids, stops=stops, split_thinking=split, inside_thinking=inside and split
        )

    at_once, grouped, singly = decoder(), decoder(), decoder()
    expected = whole(at_once, [ids])
    assert whole(grouped, cut(ids, places)) == expected
    assert whole(singly, [[token_id] for token_id in ids]) == expected
    counts = {(d.completion_tokens, d.reasoning_tokens, d.matched_stop) for d in (at_once, grouped, singly)}
    assert len(counts) == 1


@given(ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=60))
def test_nothing_is_lost_or_invented(tokenizer: TextTokenizer, ids: list[int]) -> None:
    close = tokenizer.marker_ids["</think>"]
    structure = {close, tokenizer.marker_ids["<think>"]}

    def text(part: list[int]) -> str:
        shown = [i for i in part if not tokenizer.is_control(i) and i not in structure]
        return b"".join(map(tokenizer.token_bytes, shown)).decode(errors="replace")

    head, _, tail = (ids[: ids.index(close)], close, ids[ids.index(close) + 1 :]) if close in ids else (ids, None, [])
    parts = whole(ReplyDecoder(tokenizer, stop_ids=frozenset(), inside_thinking=True), [ids])
    assert parts == {"reasoning": text(head), "content": text(tail).lstrip("\n")}


def reply(tokenizer: TextTokenizer, *parts: str | int, **options: Any) -> tuple[dict[str, str], ReplyDecoder]:
    """Decode a reply written as text and marker names, one id at a time."""
    ids: list[int] = []
    for part in parts:
        known = tokenizer.marker_ids.get(part) if isinstance(part, str) else part
        ids += [known] if known is not None else tokenizer.encode_text(str(part))
    decoder = ReplyDecoder(tokenizer, **{"stop_ids": frozenset({tokenizer.marker_ids["<|user|>"]}), **options})
    return whole(decoder, [[token_id] for token_id in ids]), decoder


def test_reply_splits_at_the_close_marker_and_drops_the_newlines_behind_it(tokenizer: TextTokenizer) -> None:
    parts, decoder = reply(tokenizer, "why\n", "</think>", "\n\n so\n", "<|user|>", inside_thinking=True)
    assert parts == {"reasoning": "why\n", "content": " so\n"}
    assert decoder.reasoning_tokens == len(tokenizer.encode_text("why\n")) + 1
    assert decoder.completion_tokens == decoder.reasoning_tokens + len(tokenizer.encode_text("\n\n so\n")) + 1


def test_close_marker_spelt_by_ordinary_tokens_does_not_split(tokenizer: TextTokenizer) -> None:
    spelt = tokenizer.encode_text("a</think>b")
    parts, _ = reply(tokenizer, *spelt, inside_thinking=True)
    assert parts == {"reasoning": "a</think>b", "content": ""}


@pytest.mark.parametrize("marker", ["<|assistant|>", "<|endoftext|>", "[gMASK]", "<|image|>", "<think>", "</think>"])
def test_control_and_think_markers_have_no_text(tokenizer: TextTokenizer, marker: str) -> None:
    assert reply(tokenizer, "a", marker, "b")[0]["content"] == "ab"


def test_call_markup_is_shown_as_written(tokenizer: TextTokenizer) -> None:
    assert reply(tokenizer, "<tool_call>", "f", "</tool_call>")[0]["content"] == "<tool_call>f</tool_call>"


def test_ids_after_the_end_are_neither_shown_nor_counted(tokenizer: TextTokenizer) -> None:
    parts, decoder = reply(tokenizer, "a", "<|user|>", "b")
    assert parts["content"] == "a"
    assert decoder.completion_tokens == 2


def test_end_markers_are_text_when_the_client_reads_past_them(tokenizer: TextTokenizer) -> None:
    end = tokenizer.marker_ids["<|user|>"]
    parts, _ = reply(tokenizer, "a", end, "b", stop_ids=frozenset(), show_ids=frozenset({end}))
    assert parts["content"] == "a<|user|>b"


def test_unsplit_reply_keeps_think_markers_and_newlines(tokenizer: TextTokenizer) -> None:
    parts, decoder = reply(tokenizer, "\na", "</think>", "\nb", split_thinking=False)
    assert parts == {"reasoning": "", "content": "\na</think>\nb"}
    assert decoder.reasoning_tokens == 0


def test_reply_that_ends_inside_a_character_ends_with_a_replacement(tokenizer: TextTokenizer) -> None:
    first = next(i for i in range(256) if tokenizer.token_bytes(i) == b"\xe2")
    parts, _ = reply(tokenizer, "a", first)
    assert parts["content"] == "a\ufffd"


def test_stop_in_the_reasoning_ends_the_reply(tokenizer: TextTokenizer) -> None:
    parts, decoder = reply(tokenizer, "one STOP", "</think>", "two", inside_thinking=True, stops=["STOP"])
    assert parts == {"reasoning": "one ", "content": ""}
    assert decoder.matched_stop == "STOP"
    assert decoder.completion_tokens < len(tokenizer.encode_text("one STOP")) + 1


def test_stop_does_not_reach_across_the_close_marker(tokenizer: TextTokenizer) -> None:
    parts, decoder = reply(tokenizer, "ST", "</think>", "OP", inside_thinking=True, stops=["STOP"])
    assert parts == {"reasoning": "ST", "content": "OP"}
    assert decoder.matched_stop is None
