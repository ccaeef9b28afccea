# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of random configurations, and the engine's model loaded from them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.comm.group import SoloGroup
from sparkpair.logits import load_rank
from sparkpair.model.glm5_next import Glm5NextRank

from tests.engine.devices import DEVICE
from tests.engine.model.configurations import random_text_config

# One thread: the tensors are tiny, and waking a second thread costs more than it computes.
torch.set_num_threads(1)

WriteCheckpoint = Callable[[int], pathlib.Path]


@pytest.fixture(scope="session")
def write_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> WriteCheckpoint:
    """Writes the checkpoint of a seed's random configuration (once a session) and returns its directory."""
    written: dict[int, pathlib.Path] = {}

    def write(seed: int) -> pathlib.Path:
        if seed not in written:
            directory = tmp_path_factory.mktemp(f"random-{seed}")
            document = miniature_document({"text_config": random_text_config(seed)})
            document["text_config"]["pad_token_id"] = 0
            write_weights(directory, document, seed, frozenset(range(320)))
            written[seed] = directory
        return written[seed]

    return write


@pytest.fixture
def solo_model(write_checkpoint: WriteCheckpoint) -> Callable[[int], Glm5NextRank]:
    """Loads a seed's model on one rank."""
    return lambda seed: load_rank(write_checkpoint(seed), SoloGroup(), DEVICE)


def random_ids(seed: int, count: int) -> list[int]:
    """`count` token ids above the pad id."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(1, 320, (count,), generator=generator).tolist()
    return ids
