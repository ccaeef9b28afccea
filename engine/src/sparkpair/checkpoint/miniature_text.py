# SPDX-License-Identifier: Apache-2.0
"""The text side of a miniature checkpoint: a small byte-level BPE tokenizer, chat template and generation
defaults.

The vocabulary has the order of the large one: the 256 bytes, then learned pieces, then at its top the
markers, in the released order, and last one id without a token (the drafters' mask id). The pieces are
learned from a short text of ours, so that even ids drawn at random read like words. Everything is a
function of the vocabulary's size alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from sparkpair.chat.tokenizer import piece_bytes
from sparkpair.errors import UserError

CONTROL_MARKERS = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
    "<|begin_of_transcription|>",
    "<|end_of_transcription|>",
    "<|code_prefix|>",
    "<|code_middle|>",
    "<|code_suffix|>",
)
"""Markers that are never part of a reply's text."""

STRUCTURE_MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
    "<|begin_of_box|>",
    "<|end_of_box|>",
)
"""Markers inside a reply, which may be shown as they are written."""

PLACEHOLDER_MARKERS = ("<|image|>", "<|video|>")

MARKERS = CONTROL_MARKERS + STRUCTURE_MARKERS + PLACEHOLDER_MARKERS
END_MARKERS = ("<|endoftext|>", "<|user|>", "<|observation|>")
PAD_MARKER = "<|endoftext|>"

MINIMUM_VOCABULARY = 256 + len(MARKERS) + 1


@dataclasses.dataclass(frozen=True, slots=True)
class TokenizerLayout:
    """Where everything stands in a miniature vocabulary.

    `readable_ids` are the ids of printable text; `mask_id` is the last id, which has an embedding row but
    no token.
    """

    vocab_size: int
    special_ids: dict[str, int]
    eos_ids: tuple[int, ...]
    pad_id: int
    mask_id: int
    readable_ids: tuple[int, ...]


def write_tokenizer(directory: Path, vocab_size: int) -> TokenizerLayout:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json into an
    existing directory.

    `vocab_size` counts the rows of the embedding. The same size gives the same bytes. Raises UserError when
    it is too small for the bytes and markers.
    """
    if vocab_size < MINIMUM_VOCABULARY:
        raise UserError(
            f"vocab_size {vocab_size} is too small for a byte-level tokenizer with {len(MARKERS)} markers:"
            f" use at least {MINIMUM_VOCABULARY}"
        )
    first_marker = vocab_size - 1 - len(MARKERS)
    document = _tokenizer_document(first_marker)
    special_ids = {marker: first_marker + index for index, marker in enumerate(MARKERS)}
    layout = TokenizerLayout(
        vocab_size=vocab_size,
        special_ids=special_ids,
        eos_ids=tuple(special_ids[marker] for marker in END_MARKERS),
        pad_id=special_ids[PAD_MARKER],
        mask_id=vocab_size - 1,
        readable_ids=tuple(sorted(i for piece, i in document["model"]["vocab"].items() if _is_readable(piece))),
    )
    _write_json(directory / "tokenizer.json", document)
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    _write_json(
        directory / "generation_config.json",
        {
            "do_sample": True,
            "temperature": 1.0,
            "top_p": 0.95,
            "eos_token_id": list(layout.eos_ids),
            "pad_token_id": layout.pad_id,
        },
    )
    (directory / "chat_template.jinja").write_text(_data("chat_template.jinja"), encoding="utf-8")
    return layout


def _data(name: str) -> str:
    return (resources.files("sparkpair") / "data" / name).read_text(encoding="utf-8")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _tokenizer_document(size: int) -> dict[str, Any]:
    """tokenizer.json with `size` pieces learned or made up, and the markers behind them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_data("miniature_words.txt").splitlines(), trainer)
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    _fill(document["model"]["vocab"], size)
    document["added_tokens"] = [added_token(size + index, marker) for index, marker in enumerate(MARKERS)]
    return document


def _fill(vocabulary: dict[str, int], size: int) -> None:
    """Bring a vocabulary to `size` with pairs of learned words, which text never encodes to but which read
    like text.
    """
    words = [piece for piece in vocabulary if len(piece) > 3 and _is_readable(piece)]
    pairs = ("".join(parts) for count in itertools.count(2) for parts in itertools.product(words, repeat=count))
    while len(vocabulary) < size:
        vocabulary.setdefault(next(pairs), len(vocabulary))


def _is_readable(piece: str) -> bool:
    try:
        return piece_bytes(piece).decode().isprintable()
    except UnicodeDecodeError:
        return False


def added_token(token_id: int, marker: str) -> dict[str, Any]:
    """Return a marker's entry in `added_tokens` of tokenizer.json."""
    return {
        "id": token_id,
        "content": marker,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": marker not in STRUCTURE_MARKERS,
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": END_MARKERS[0],
        "pad_token": PAD_MARKER,
        "model_max_length": 1048576,
        "padding_side": "left",
        "extra_special_tokens": {},
    }
