# SPDX-License-Identifier: Apache-2.0
"""The miniature's text files: the released order of markers, the same bytes each time, readable to
transformers.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from sparkpair.chat.tokenizer import TextTokenizer
from sparkpair.checkpoint.miniature_text import MARKERS, MINIMUM_VOCABULARY, write_tokenizer
from sparkpair.errors import UserError

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def test_markers_have_their_released_distance_from_the_mask_id(tmp_path: Path) -> None:
    released = {
        "<|endoftext|>": 154820, "[gMASK]": 154822, "<sop>": 154824, "<|system|>": 154826,
        "<|user|>": 154827, "<|assistant|>": 154828, "<|observation|>": 154829,
        "<|begin_of_image|>": 154830, "<|end_of_video|>": 154833, "<think>": 154841, "</think>": 154842,
        "<tool_call>": 154843, "</tool_response>": 154846, "<arg_key>": 154847, "</arg_value>": 154850,
        "/nothink": 154851, "<|image|>": 154854, "<|video|>": 154855,
    }  # fmt: skip
    layout = write_tokenizer(tmp_path, 1536)
    assert layout.mask_id == 1535
    for marker, token_id in released.items():
        assert layout.mask_id - layout.special_ids[marker] == 154856 - token_id, marker
    assert layout.eos_ids == tuple(layout.special_ids[m] for m in ("<|endoftext|>", "<|user|>", "<|observation|>"))
    assert layout.pad_id == layout.special_ids["<|endoftext|>"]


@pytest.mark.parametrize("vocab_size", [MINIMUM_VOCABULARY, 500, 1536, 6000])
def test_every_id_but_the_mask_has_a_token_at_any_size(tmp_path: Path, vocab_size: int) -> None:
    layout = write_tokenizer(tmp_path, vocab_size)
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.size == vocab_size - 1
    assert all(tokenizer.token_bytes(token_id) for token_id in range(vocab_size - 1))
    assert tokenizer.marker_ids == layout.special_ids


def test_readable_ids_are_printable_text(tmp_path: Path) -> None:
    layout = write_tokenizer(tmp_path, 1536)
    tokenizer = TextTokenizer.load(tmp_path)
    assert all(tokenizer.token_bytes(token_id).decode().isprintable() for token_id in layout.readable_ids)
    words = [i for i in layout.readable_ids if len(tokenizer.token_bytes(i)) > 2]
    assert len(words) > 900
    assert not set(layout.readable_ids) & set(layout.special_ids.values())


def test_same_size_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    write_tokenizer(first, 1536)
    write_tokenizer(second, 1536)
    assert [(first / name).read_bytes() for name in FILES] == [(second / name).read_bytes() for name in FILES]


def test_too_small_a_vocabulary_is_refused_with_the_smallest_possible(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"at least {MINIMUM_VOCABULARY}"):
        write_tokenizer(tmp_path, MINIMUM_VOCABULARY - 1)


def test_transformers_reads_the_same_tokenizer(text_directory: Path, tokenizer: TextTokenizer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        reference = AutoTokenizer.from_pretrained(text_directory)
    text = "The capital of Norway is Oslo. ď삼👋"
    assert reference.encode(text, add_special_tokens=False) == tokenizer.encode_text(text)
    assert reference.eos_token_id == reference.pad_token_id == tokenizer.marker_ids["<|endoftext|>"]
    assert reference.convert_tokens_to_ids(list(MARKERS)) == [tokenizer.marker_ids[m] for m in MARKERS]


def test_generation_defaults_are_the_released_ones(text_directory: Path, tokenizer: TextTokenizer) -> None:
    defaults = json.loads((text_directory / "generation_config.json").read_text())
    assert (defaults["temperature"], defaults["top_p"]) == (1.0, 0.95)
    assert defaults["eos_token_id"] == [
        tokenizer.marker_ids[m] for m in ("<|endoftext|>", "<|user|>", "<|observation|>")
    ]
