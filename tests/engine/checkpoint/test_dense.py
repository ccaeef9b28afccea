# SPDX-License-Identifier: Apache-2.0
"""Dense weights quantised at load: bounded errors, the same numbers on any number of ranks; released fp8 is read."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sparkpair import kernels
from sparkpair.checkpoint.dense import quantise_fp8, quantise_q4
from sparkpair.checkpoint.forms import DenseForm, WeightForms
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.checkpoint.names import is_backbone
from sparkpair.checkpoint.rank_weights import Layout, RankWeights, rank_bytes
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.kernels.reference.linear import fp8_matrix, q4_matrix
from sparkpair.kernels.weights import Fp8Weight, Q4Weight, Weight, stack_rows
from sparkpair.logits import all_logits
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank

from tests.engine import devices
from tests.engine.devices import DEVICE

LAYERS = "model.language_model.layers"


def noise(rows: int, columns: int, seed: int) -> torch.Tensor:
    return 0.05 * devices.randn(rows, columns, seed=seed)


def matrix_of(weight: Weight) -> torch.Tensor:
    """The numbers a weight stands for."""
    if isinstance(weight, Fp8Weight):
        return fp8_matrix(weight)
    if isinstance(weight, Q4Weight):
        return q4_matrix(weight)
    assert isinstance(weight, torch.Tensor)
    return weight


shapes = given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 2**31), st.floats(1e-4, 1e3))


@shapes
@settings(max_examples=60, deadline=None)
def test_fp8_errs_by_a_sixteenth_of_each_value_at_most(rows: int, columns: int, seed: int, size: float) -> None:
    matrix = size * noise(rows, columns, seed)
    weight = quantise_fp8(matrix, slice(0, columns))
    error = (fp8_matrix(weight) - matrix).abs()
    # Below the smallest normal code the steps are even: 2^-9 of the scale, which is 1/448 of the block's peak.
    floor = matrix.abs().amax(1, keepdim=True) / 448 * 2**-10
    assert (error <= matrix.abs() / 16 * 1.001 + floor).all()


@shapes
@settings(max_examples=60, deadline=None)
def test_q4_errs_no_more_than_ranges_from_edge_to_edge(rows: int, columns: int, seed: int, size: float) -> None:
    matrix = size * noise(rows, columns, seed)
    found = (q4_matrix(quantise_q4(matrix, slice(0, columns))) - matrix).square()
    for first in range(0, columns, 64):
        group = matrix[:, first : first + 64]
        low = group.amin(1, keepdim=True).to(torch.bfloat16).float()
        scale = ((group.amax(1, keepdim=True) - group.amin(1, keepdim=True)) / 15).to(torch.bfloat16).float()
        codes = ((group - low) / scale.where(scale > 0, 1.0)).round().clamp(0, 15)
        plain = (low + codes * scale - group).square().sum(1)
        assert (found[:, first : first + 64].sum(1) <= 1.0001 * plain + 1e-12 * size**2).all()


def test_the_searched_ranges_are_better_than_edge_to_edge_on_gaussian_weights() -> None:
    matrix = noise(64, 1024, 1)
    weight = quantise_q4(matrix, slice(0, 1024))
    error = (q4_matrix(weight) - matrix).square().mean().sqrt() / matrix.square().mean().sqrt()
    assert error < 0.088  # edge to edge: 0.093
    assert weight.nbytes == 64 * 1024 // 2 + 64 * 16 * 4


@pytest.mark.parametrize("quantise", [quantise_fp8, quantise_q4])
def test_zero_and_constant_rows_survive(quantise: object) -> None:
    assert callable(quantise)
    matrix = devices.zeros(3, 128)
    matrix[1] = 0.5
    found = matrix_of(quantise(matrix, slice(0, 128)))
    assert torch.equal(found[0], matrix[0])
    assert torch.allclose(found[1], matrix[1], rtol=1e-3)


@pytest.mark.parametrize("quantise", [quantise_fp8, quantise_q4])
@given(st.integers(0, 299), st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_kept_columns_are_those_of_the_whole(quantise: object, start: int, length: int) -> None:
    assert callable(quantise)
    matrix = noise(3, 300, 5)
    keep = slice(start, min(start + length, 300))
    whole, part = quantise(matrix, slice(0, 300)), quantise(matrix, keep)
    assert part.shape == (3, keep.stop - keep.start)
    assert torch.equal(matrix_of(part), matrix_of(whole)[:, keep])


@pytest.mark.parametrize("quantise", [quantise_fp8, quantise_q4])
def test_a_linear_map_and_stacked_rows_use_the_de_quantised_numbers(quantise: object) -> None:
    assert callable(quantise)
    first, second = (quantise(noise(16, 200, seed), slice(7, 171)) for seed in (1, 2))
    x = devices.randn(5, 164, seed=3)
    stacked = stack_rows([first, second])
    assert stacked.shape == (32, 164)
    expected = x @ torch.cat([matrix_of(first), matrix_of(second)]).T
    assert torch.allclose(kernels.linear(x, stacked), expected, atol=1e-5)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("dense") / "miniature"
    write_miniature(directory, seed=1, overrides={})
    return directory


def rank_weights(directory: pathlib.Path, forms: WeightForms, world: int = 1, rank: int = 0) -> RankWeights:
    config, checkpoint = load_text_config(directory), Checkpoint(directory)
    return RankWeights(checkpoint, config, world=world, rank=rank, dtype=torch.float32, device=DEVICE, forms=forms)


@pytest.mark.parametrize("dense", ["fp8", "q4"])
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("prefix", "axis"),
    [
        ("lm_head", 0),
        (f"{LAYERS}.0.self_attn.q_proj", 0),
        (f"{LAYERS}.0.self_attn.o_proj", 1),  # 192 columns: two ranks' cut falls inside a group
        (f"{LAYERS}.0.mlp.down_proj", 1),
        (f"{LAYERS}.3.mlp.shared_experts.down_proj", 1),
    ],
)
def test_the_ranks_hold_the_numbers_of_one_rank(
    miniature: pathlib.Path, dense: DenseForm, world: int, prefix: str, axis: int
) -> None:
    forms = WeightForms(dense=dense)
    whole = matrix_of(rank_weights(miniature, forms).take_linear(prefix))
    parts = [matrix_of(rank_weights(miniature, forms, world, rank).take_linear(prefix)) for rank in range(world)]
    assert torch.equal(torch.cat(parts, dim=axis), whole)


def test_the_head_is_fp8_at_best_and_what_chooses_or_is_absorbed_stays_as_stored(miniature: pathlib.Path) -> None:
    weights = rank_weights(miniature, WeightForms(dense="q4"))
    assert isinstance(weights.take_linear("lm_head"), Fp8Weight)
    assert isinstance(weights.take_linear(f"{LAYERS}.8.eh_proj"), Q4Weight)
    for prefix in ("3.self_attn.kv_b_proj", "3.self_attn.indexer.wq_b", "3.mlp.gate", "3.mlp.experts.0.gate_proj"):
        assert isinstance(weights.take_linear(f"{LAYERS}.{prefix}"), torch.Tensor)


IDS = [5, 17, 900, 33, 1200, 4, 4, 801, 77, 300]


def logits(directory: pathlib.Path, forms: WeightForms) -> torch.Tensor:
    model = Glm5NextRank(load_text_config(directory), rank_weights(directory, forms), SoloGroup())
    return all_logits(model, IDS, step=False)


def test_quantised_models_resemble_the_stored_one_and_fp8_more_than_q4(miniature: pathlib.Path) -> None:
    exact = logits(miniature, WeightForms()).flatten()
    alike = [
        torch.corrcoef(torch.stack([logits(miniature, WeightForms(dense=dense)).flatten(), exact]))[0, 1].item()
        for dense in ("fp8", "q4")
    ]
    # A random model has no margins: a small error sends some rows to other experts.
    assert 0.8 < alike[0] < 1.0
    assert 0.5 < alike[1] < alike[0]


def block_scaled(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A matrix as the fp8 release stores it: codes, and a scale for every 128 x 128 block."""
    rows, columns = tensor.shape
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for down in range(scales.shape[0]):
        for across in range(scales.shape[1]):
            place = (slice(128 * down, 128 * down + 128), slice(128 * across, 128 * across + 128))
            block = tensor[place].float()
            scales[down, across] = block.abs().max() / 448
            codes[place] = (block / scales[down, across]).to(torch.float8_e4m3fn)
    yield name, codes
    yield f"{name}_scale_inv", scales


@pytest.fixture(scope="module")
def released(miniature: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """The miniature in the fp8 release's form, and beside it the same numbers written out in fp32."""
    stored, plain = (tmp_path_factory.mktemp("fp8") / name for name in ("stored", "plain"))
    for directory in (stored, plain):
        directory.mkdir()
        document = json.loads((miniature / "config.json").read_text())
        document["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        (directory / "config.json").write_text(json.dumps(document))
    for path in sorted(miniature.glob("*.safetensors")):
        coded: dict[str, torch.Tensor] = {}
        decoded: dict[str, torch.Tensor] = {}
        for name, tensor in load_file(path).items():
            coded[name] = decoded[name] = tensor
            if name.endswith("_proj.weight") and ".layers." in name:
                coded |= dict(block_scaled(name, tensor))
                spread = coded[f"{name}_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
                decoded[name] = coded[name].float() * spread[: tensor.shape[0], : tensor.shape[1]]
        save_file(coded, stored / path.name)
        save_file(decoded, plain / path.name)
    return stored, plain


def test_the_released_fp8_form_gives_the_logits_of_its_numbers(released: tuple[pathlib.Path, pathlib.Path]) -> None:
    stored, plain = released
    assert torch.equal(logits(stored, WeightForms()), logits(plain, WeightForms()))
    assert torch.equal(logits(stored, WeightForms(dense="q4")), logits(plain, WeightForms(dense="q4")))


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_read_their_part_of_block_scaled_weights(released: tuple[pathlib.Path, pathlib.Path], world: int) -> None:
    stored = released[0]
    config, checkpoint = load_text_config(stored), Checkpoint(stored)
    for rank in range(world):
        found, expected = (rank_weights(directory, WeightForms(), world, rank) for directory in released)
        for leaf in ("0.self_attn.o_proj", "3.self_attn.kv_b_proj", "3.mlp.experts.1.down_proj", "0.mlp.gate_proj"):
            name = f"{LAYERS}.{leaf}.weight"
            assert torch.equal(found.take(name), expected.take(name))
        weights = rank_weights(stored, WeightForms(), world, rank)
        Glm5NextRank(config, weights, SoloGroup())
        layout = Layout(world, rank, torch.float32)
        planned = rank_bytes(checkpoint, config, layout, lambda name: is_backbone(config, name))
        assert (weights.bytes_read, weights.bytes_held) == (planned.stored, planned.held)
