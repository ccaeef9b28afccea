# SPDX-License-Identifier: Apache-2.0
"""The trained miniature's text files: a byte-level BPE learned from the training texts, with the released markers.

The layout is that of `sparkpair miniature`: bytes, pieces, markers in the released order, and one id without a token.
Digits stand alone, so that a number's digits can be added one by one.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from sparkpair.checkpoint.miniature_text import MARKERS, TokenizerLayout, added_token, write_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.cases import Case
from training.mixture import text_sample

SAMPLE = 6000


def texts(cases: list[Case]) -> Iterator[str]:
    """All texts of cases that stand between markers."""
    for case in cases:
        for message in case.messages:
            content = message["content"]
            parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            yield from (part for part in parts if part)
        yield from (text for text in (case.wanted.content, case.wanted.reasoning) if text)
        for tool in case.tools:
            yield json.dumps(tool["function"])
        for name, arguments in case.wanted.calls:
            yield name
            yield from (value if isinstance(value, str) else json.dumps(value) for value in arguments.values())


def write_text_files(directory: pathlib.Path, vocab_size: int, seed: int = 1, sample: int = SAMPLE) -> TokenizerLayout:
    """Write tokenizer, template and generation defaults into an existing directory; the same arguments, same bytes."""
    layout = write_tokenizer(directory, vocab_size)
    first_marker = vocab_size - 1 - len(MARKERS)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=first_marker,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts(text_sample(seed, sample)), trainer)
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    if len(document["model"]["vocab"]) != first_marker:
        raise ValueError(f"{len(document['model']['vocab'])} pieces were learned, not {first_marker}: take more text")
    document["added_tokens"] = [added_token(first_marker + index, marker) for index, marker in enumerate(MARKERS)]
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (directory / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    return layout
