# SPDX-License-Identifier: Apache-2.0
"""Every row of every divided tensor is held by exactly one rank, in whole units."""

from __future__ import annotations

import pathlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.checkpoint.forms import WeightForms
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.checkpoint.names import is_backbone
from sparkpair.checkpoint.rank_weights import Layout, RankWeights, rank_bytes
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import check_world, cut_width, rank_part, share
from sparkpair.comm.group import SoloGroup
from sparkpair.errors import UserError
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank

from tests.engine.devices import DEVICE


@given(st.integers(1, 1000), st.integers(1, 8))
def test_shares_cover_everything_once_and_differ_by_one_at_most(total: int, world: int) -> None:
    shares = [share(total, world, rank) for rank in range(world)]
    assert [shares[0].start, *(cut.stop for cut in shares)] == [0, *(cut.start for cut in shares[1:]), total]
    sizes = [cut.stop - cut.start for cut in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_an_experts_width_is_cut_in_whole_blocks_of_128() -> None:
    # The released model on three ranks: 2048 columns are 16 blocks.
    assert [cut_width(2048, 3, rank) for rank in range(3)] == [slice(0, 768), slice(768, 1408), slice(1408, 2048)]


def test_a_width_too_small_for_blocks_is_cut_by_columns() -> None:
    assert [cut_width(128, 2, rank) for rank in range(2)] == [slice(0, 64), slice(64, 128)]


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("split") / "miniature"
    write_miniature(directory, seed=1, overrides={})
    return directory


@pytest.fixture(scope="module")
def exl3_miniature(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("split") / "exl3"
    write_miniature(directory, seed=1, overrides={}, experts="exl3")
    return directory


@pytest.mark.parametrize("world", [2, 3])
def test_the_ranks_parts_of_every_tensor_join_to_the_whole(miniature: pathlib.Path, world: int) -> None:
    config, checkpoint = load_text_config(miniature), Checkpoint(miniature)
    divided = 0
    for name, entry in checkpoint.entries.items():
        parts = [rank_part(config, name, entry.shape, world, rank) for rank in range(world)]
        if parts[0] is None:
            continue
        divided += 1
        axis = parts[0][0]
        pieces = []
        for part in parts:
            assert part is not None
            everything = [slice(0, width) for width in entry.shape]
            pieces.append(checkpoint.read(name, [*everything[:axis], part[1], *everything[axis + 1 :]]))
        joined = torch.cat(pieces, dim=axis)
        assert torch.equal(joined, checkpoint.read(name)), name
    assert divided > 100


FORMS = [
    ("bf16", WeightForms()),
    ("bf16", WeightForms(dense="fp8")),
    ("bf16", WeightForms(dense="q4")),
    ("exl3", WeightForms(dense="q4", experts="packed")),
    ("exl3", WeightForms(experts="decoded")),
]


@pytest.mark.parametrize(("experts", "forms"), FORMS, ids=lambda value: str(value).replace("WeightForms", ""))
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_estimate_from_headers_is_what_loading_reads_and_holds(
    miniature: pathlib.Path, exl3_miniature: pathlib.Path, world: int, experts: str, forms: WeightForms
) -> None:
    directory = exl3_miniature if experts == "exl3" else miniature
    config, checkpoint = load_text_config(directory), Checkpoint(directory)
    for rank in range(world):
        layout = Layout(world, rank, torch.float32, forms)
        expected = rank_bytes(checkpoint, config, layout, lambda name: is_backbone(config, name))
        weights = RankWeights(
            checkpoint, config, world=world, rank=rank, dtype=torch.float32, device=DEVICE, forms=forms
        )
        Glm5NextRank(config, weights, SoloGroup())
        assert (weights.bytes_read, weights.bytes_held) == (expected.stored, expected.held)


def test_more_ranks_than_heads_are_refused(miniature: pathlib.Path) -> None:
    with pytest.raises(UserError, match="--tp 7: the model has only 6 attention heads"):
        check_world(load_text_config(miniature), 7)
