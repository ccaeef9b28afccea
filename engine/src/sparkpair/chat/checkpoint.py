# SPDX-License-Identifier: Apache-2.0
"""Everything about text that a checkpoint directory says: tokenizer, template, end ids, sampling defaults."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from sparkpair.chat.template import ChatTemplate
from sparkpair.chat.tokenizer import TextTokenizer
from sparkpair.errors import UserError
from sparkpair.request import SamplingParams

TURN_MARKERS = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
"""Markers that begin a turn: one of them in a reply means that the reply is over."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointText:
    """The text side of a checkpoint. `vocab_size` counts the ids that the model knows; `stop_ids` end a
    reply.
    """

    tokenizer: TextTokenizer
    template: ChatTemplate
    vocab_size: int
    stop_ids: frozenset[int]
    sampling: SamplingParams

    @classmethod
    def load(cls, directory: Path) -> CheckpointText:
        """Read the text files of a checkpoint. Raises UserError naming the file that is missing or wrong."""
        tokenizer = TextTokenizer.load(directory)
        generation = _object(directory / "generation_config.json")
        config = _object(directory / "config.json")
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate.load(directory, tokenizer),
            vocab_size=_vocab_size(config, tokenizer),
            stop_ids=_stop_ids(generation, config, tokenizer),
            sampling=_sampling(generation, directory / "generation_config.json"),
        )


def _object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty when there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); copy the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object; copy the file again")
    return value


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _vocab_size(config: dict[str, Any], tokenizer: TextTokenizer) -> int:
    """Rows of the embedding, which may be more than the tokenizer has tokens."""
    size = _text_config(config).get("vocab_size")
    return size if isinstance(size, int) else tokenizer.size


def _stop_ids(generation: dict[str, Any], config: dict[str, Any], tokenizer: TextTokenizer) -> frozenset[int]:
    """The declared end ids, and every marker that begins a turn."""
    declared = generation.get("eos_token_id", _text_config(config).get("eos_token_id"))
    ids = declared if isinstance(declared, list) else [declared]
    turns = (tokenizer.marker_ids.get(marker) for marker in TURN_MARKERS)
    return frozenset(token_id for token_id in (*ids, *turns) if isinstance(token_id, int))


def _sampling(generation: dict[str, Any], source: Path) -> SamplingParams:
    released = {"temperature": 1.0, "top_p": 0.95, "top_k": 0, "min_p": 0.0}
    values = {name: released[name] if generation.get(name) is None else generation[name] for name in released}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{source}: {name} is {value!r}; expected a number")
    return SamplingParams(
        temperature=float(values["temperature"]),
        top_p=float(values["top_p"]),
        top_k=max(int(values["top_k"]), 0),
        min_p=float(values["min_p"]),
    )
