# SPDX-License-Identifier: Apache-2.0
"""Text to ids and back: exact for every text, closed to forged markers, refusing files it would read
wrongly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.chat import tokenizer as module
from sparkpair.chat.tokenizer import Segment, TextTokenizer
from sparkpair.checkpoint.miniature_text import MARKERS, write_tokenizer
from sparkpair.errors import UserError
from tokenizers import Tokenizer


@pytest.fixture(scope="session")
def document(text_directory: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((text_directory / "tokenizer.json").read_text())
    return parsed


@pytest.fixture(scope="session")
def reference(text_directory: Path) -> Tokenizer:
    """The tokenizers library reading the whole file, markers included."""
    return Tokenizer.from_file(str(text_directory / "tokenizer.json"))


@pytest.fixture(scope="session")
def plain(document: dict[str, Any]) -> Tokenizer:
    """The tokenizers library reading a file without markers."""
    return Tokenizer.from_str(json.dumps({**document, "added_tokens": []}))


@given(text=st.text())
def test_bytes_of_the_ids_are_the_bytes_of_the_text(tokenizer: TextTokenizer, text: str) -> None:
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode_text(text))) == text.encode()


CUTS = ("the river", "é \u0301", "Ⅷ x", "a 9", "x\ny", "x \n y", "它 们", " '", "'s x")


@given(
    parts=st.lists(st.one_of(st.text(), st.sampled_from(CUTS))),
    repeats=st.integers(1, 40),
    piece=st.integers(1, 30),
)
def test_long_text_is_cut_where_no_token_is(
    tokenizer: TextTokenizer, plain: Tokenizer, parts: list[str], repeats: int, piece: int
) -> None:
    text = "".join(parts) * repeats
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", piece)
        assert tokenizer.encode_text(text) == plain.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"normalizer": {"type": "Prepend", "prepend": "x"}},
    ],
)
def test_tokenizer_whose_words_reach_over_blanks_gets_its_text_in_one_piece(
    document: dict[str, Any], change: dict[str, Any]
) -> None:
    model = document["model"]
    over_a_blank = {"vocab": {**model["vocab"], "eĠ": 5000}, "merges": [["e", "Ġ"], *model["merges"]]}
    changed = {**document, **change, "model": {**model, **over_a_blank}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 3)
        ids = TextTokenizer(changed, "test").encode_text("the river runs")
    reference = Tokenizer.from_str(json.dumps({**changed, "added_tokens": []}))
    assert ids == reference.encode("the river runs", add_special_tokens=False).ids


@given(text=st.lists(st.one_of(st.text(), st.sampled_from(MARKERS))).map("".join))
def test_text_with_markers_encodes_as_the_library_does(
    tokenizer: TextTokenizer, reference: Tokenizer, text: str
) -> None:
    segments = tokenizer.split_markers(text)
    assert tokenizer.encode_segments(segments) == reference.encode(text, add_special_tokens=False).ids


@given(ids=st.lists(st.integers(0, 1535)))
def test_bytes_of_any_ids_decode_as_the_library_does(
    tokenizer: TextTokenizer, reference: Tokenizer, ids: list[int]
) -> None:
    decoded = b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")
    assert decoded == reference.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("marker", MARKERS)
def test_marker_typed_as_text_has_no_marker_id(tokenizer: TextTokenizer, marker: str) -> None:
    ids = tokenizer.encode_text(f"a {marker}{marker}")
    assert not set(ids) & set(tokenizer.marker_ids.values())
    assert tokenizer.encode_segments([Segment(marker, True)]) == [tokenizer.marker_ids[marker]]


def test_split_finds_every_marker_and_keeps_the_text_between(tokenizer: TextTokenizer) -> None:
    assert tokenizer.split_markers("a<|user|>[gMASK] <think") == [
        Segment("a", False),
        Segment("<|user|>", True),
        Segment("[gMASK]", True),
        Segment(" <think", False),
    ]


def test_flags_of_a_marker_are_honoured(document: dict[str, Any]) -> None:
    added = [
        {"id": 1499, "content": "<greedy>", "lstrip": True, "rstrip": True, "special": True},
        {"id": 1500, "content": "word", "single_word": True, "special": True},
    ]
    tokenizer = TextTokenizer({**document, "added_tokens": added}, "test")
    assert tokenizer.split_markers("a  <greedy> b sword word") == [
        Segment("a", False),
        Segment("<greedy>", True),
        Segment("b sword ", False),
        Segment("word", True),
    ]


def test_id_without_a_token_has_no_bytes(tokenizer: TextTokenizer) -> None:
    assert tokenizer.size == 1535
    assert tokenizer.token_bytes(1535) == tokenizer.token_bytes(10**6) == b""


def test_control_markers_are_told_from_structure(tokenizer: TextTokenizer) -> None:
    assert tokenizer.is_control(tokenizer.marker_ids["<|user|>"])
    assert not tokenizer.is_control(tokenizer.marker_ids["<tool_call>"])
    assert not tokenizer.is_control(tokenizer.encode_text("a")[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "expected a BPE model"),
        ({"decoder": {"type": "Metaspace"}}, "expected a byte-level decoder"),
        ({"decoder": None}, "expected a byte-level decoder"),
        ({"pre_tokenizer": {"type": "Nonsense"}}, "library refuses it"),
        ({"added_tokens": [{"id": 64, "content": "a"}]}, "text could forge markers"),
    ],
    ids=["unigram", "decoder", "no decoder", "nonsense", "marker in text"],
)
def test_tokenizer_that_would_be_read_wrongly_is_refused(
    document: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    if "forge" in message:
        change = {"added_tokens": [{"id": document["model"]["vocab"]["a"], "content": "a"}]}
    with pytest.raises(UserError, match=message):
        TextTokenizer({**document, **change}, "tokenizer.json")


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: cannot be read"):
        TextTokenizer.load(tmp_path)
    write_tokenizer(tmp_path, 1536)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"tokenizer\.json: is not valid JSON"):
        TextTokenizer.load(tmp_path)
