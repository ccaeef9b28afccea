# SPDX-License-Identifier: Apache-2.0
"""The forward pass equals transformers' `glm5_next` on random small configurations, in fp32."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable

import pytest
import torch
from sparkpair.cache.state import Span
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.comm.group import SoloGroup
from sparkpair.logits import all_logits, load_rank
from sparkpair.model.glm5_next import Glm5NextRank

from tests.engine.devices import DEVICE
from tests.engine.model.conftest import WriteCheckpoint, random_ids

# Shorter than a convolution, within a pool, around the 64-token chunk, across two and three chunks.
LENGTHS = (1, 3, 17, 63, 64, 65, 130, 200)
SEEDS = range(24)
TOLERANCE = 1e-4


def reference_logits(directory: pathlib.Path, ids: list[int]) -> torch.Tensor:
    """Logits [len(ids), vocab] of transformers' model, loaded from the same files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.models.glm5_next.modeling_glm5_next import Glm5NextForConditionalGeneration

        model = Glm5NextForConditionalGeneration.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            logits: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize("seed", SEEDS)
def test_prefill_and_decode_equal_the_reference(seed: int, write_checkpoint: WriteCheckpoint) -> None:
    directory = write_checkpoint(seed)
    ids = random_ids(seed, LENGTHS[seed % len(LENGTHS)])
    expected = reference_logits(directory, ids)
    model = load_rank(directory, SoloGroup(), DEVICE)
    assert expected.std() > 1, "the reference's logits are flat, so agreeing with them would say little"
    for step in (False, True):
        assert (all_logits(model, ids, step=step).cpu() - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("cuts", [[64], [37], [64, 128, 129], [1, 2, 3, 100]], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_prompt_absorbed_in_pieces_equals_one_absorbed_whole(
    seed: int, cuts: list[int], solo_model: Callable[[int], Glm5NextRank]
) -> None:
    model = solo_model(seed)
    ids = random_ids(seed, 200)
    whole = all_logits(model, ids, step=False)
    state = model.lone_state()
    pieces = []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        span = Span(slice(0, stop - start), state, decode=False)
        pieces.append(model.forward(torch.tensor(ids[start:stop], device=DEVICE), [span], list(range(stop - start))))
    assert (torch.cat(pieces) - whole).abs().max() <= TOLERANCE


def test_two_sequences_in_one_batch_equal_each_alone(solo_model: Callable[[int], Glm5NextRank]) -> None:
    model = solo_model(7)
    first, second = random_ids(1, 90), random_ids(2, 33)
    alone = [all_logits(model, ids, step=False) for ids in (first, second)]
    spans = [
        Span(slice(0, len(first)), model.lone_state(), decode=False),
        Span(slice(len(first), len(first) + len(second)), model.lone_state(), decode=False),
    ]
    together = model.forward(torch.tensor(first + second, device=DEVICE), spans, list(range(len(first) + len(second))))
    assert (together - torch.cat(alone)).abs().max() <= TOLERANCE


def test_the_default_miniature_loads_into_transformers_without_renaming(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "miniature"
    write_miniature(directory, seed=1, overrides={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.models.glm5_next.modeling_glm5_next import Glm5NextForConditionalGeneration

        _, loading = Glm5NextForConditionalGeneration.from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True
        )
    assert loading["missing_keys"] == set()
    assert loading["mismatched_keys"] == set()
    # The MTP layer is not part of transformers' model.
    assert all(".layers.8." in name for name in loading["unexpected_keys"])
