# SPDX-License-Identifier: Apache-2.0
"""EXL3 to the bit: codebook, bit order, tile order, transforms, cuts, and an encoder that the decoder understands."""

from __future__ import annotations

import json
import pathlib

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sparkpair import kernels
from sparkpair.checkpoint.exl3_encode import CODEBOOK_RMS, encode, pack_symbols, search_symbols
from sparkpair.checkpoint.forms import WeightForms
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.errors import UserError
from sparkpair.kernels.reference.exl3 import codebook, decode_trellis, hadamard, tile_states
from sparkpair.kernels.weights import Exl3Weight
from sparkpair.logits import all_logits
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank

from tests.engine import devices
from tests.engine.devices import DEVICE

EXPERT = "model.language_model.layers.3.mlp.experts.0"

ROW_0 = [
    -0.45263672, -1.2275391, -0.47265625, -0.07128906, 0.87353516, -0.8652344, -2.7070312, 0.9746094,
    0.05615234, 3.1328125, -0.9711914, -0.8964844, 1.1601562, -1.3212891, -1.2353516, -0.0324707,
]  # fmt: skip
COLUMN_0 = [
    -0.45263672, 2.0175781, -1.7324219, -0.73828125, -1.4306641, 1.2070312, 0.27294922, -0.6899414,
    -3.2871094, 0.39233398, 0.15576172, 0.46191406, -1.2548828, -3.6191406, 1.2304688, -1.984375,
]  # fmt: skip


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_linear(outputs: int, inputs: int, bits: int, seed: int) -> Exl3Weight:
    """Any bits are a valid trellis; scales differ from row to row and column to column."""
    draw = generator(seed)
    trellis = torch.randint(-(2**15), 2**15, (inputs // 16, outputs // 16, 16 * bits), generator=draw)
    suh = torch.randn(inputs, generator=draw).half()
    svh = torch.randn(outputs, generator=draw).half()
    return Exl3Weight(trellis.to(torch.int16).to(DEVICE), suh.to(DEVICE), svh.to(DEVICE))


@pytest.fixture
def published_tile() -> torch.Tensor:
    words = [(0x9E3779B9 * (number + 1)) % 2**32 for number in range(32)]
    return torch.from_numpy(numpy.array(words, dtype="<u4").view("<i2").astype(numpy.int16)).to(DEVICE)


def test_the_codebook_equals_the_published_values() -> None:
    table = codebook(DEVICE)
    assert table.dtype == torch.float16
    expected = [1.84375, 0.13452148, -0.75927734, 0.83984375, 0.66503906, -0.46069336]
    assert torch.equal(table[:6], devices.tensor(expected).half())
    assert table[0x1234].item() == pytest.approx(1.515, abs=5e-4)
    wide = table.double()
    assert wide.mean().item() == pytest.approx(-3.7e-5, abs=1e-6)
    assert wide.square().mean().sqrt().item() == pytest.approx(1.24411, abs=1e-5)
    assert (wide.min().item(), wide.max().item()) == pytest.approx((-3.949, 3.949), abs=1e-3)


def test_the_published_tile_decodes_to_the_bit(published_tile: torch.Tensor) -> None:
    assert published_tile[:6].tolist() == [31161, -25033, -3214, 15470, 27947, -9562]
    states = [0x7209, 0x209E, 0x09E3, 0x9E37, 0xE377, 0x3779, 0x779B, 0x79B9, 0x9B93, 0xB93C]
    assert tile_states(published_tile)[:10].tolist() == states
    matrix = decode_trellis(published_tile.view(1, 1, 64))
    assert torch.equal(matrix[0], devices.tensor(ROW_0).half())
    assert torch.equal(matrix[:, 0], devices.tensor(COLUMN_0).half())
    assert matrix.double().sum().item() == 6.607421875
    assert matrix.double().square().sum().item() == pytest.approx(426.0634346, abs=1e-6)


@given(st.integers(2, 8), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_packed_symbols_come_back_as_a_ring_of_states(bits: int, seed: int) -> None:
    symbols = torch.randint(0, 2**bits, (3, 256), generator=generator(seed)).to(DEVICE)
    states = tile_states(pack_symbols(symbols, bits))
    before = torch.roll(states, 1, dims=1)
    assert torch.equal(states & (2**bits - 1), symbols)
    assert torch.equal(((before << bits) | symbols) & 0xFFFF, states)


def test_tiles_lie_in_the_matrix_by_input_rows_and_output_columns(published_tile: torch.Tensor) -> None:
    weight = random_linear(128, 256, 4, 1)
    trellis = weight.trellis.clone()
    trellis[5, 2] = published_tile
    block = decode_trellis(trellis)[80:96, 32:48]
    assert torch.equal(block, decode_trellis(published_tile.view(1, 1, 64)))


def test_the_hadamard_transform_is_sylvesters_and_its_own_inverse() -> None:
    matrix = hadamard(devices.eye(256))
    signs = [[(-1) ** (row & column).bit_count() for column in range(128)] for row in range(128)]
    assert torch.allclose(matrix[:128, :128], devices.tensor(signs) * 0.08838834764831845, atol=1e-7)
    assert not matrix[:128, 128:].any()
    x = devices.randn(3, 256, seed=1)
    assert torch.allclose(hadamard(hadamard(x)), x, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_the_packed_form_computes_what_the_effective_matrix_does(bits: int) -> None:
    weight = random_linear(256, 128, bits, bits)
    x = devices.randn(7, 128, seed=9)
    expected = x @ kernels.exl3_effective(weight).T
    found = kernels.linear(x, weight)
    assert found.shape == (7, 256)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_a_row_has_the_same_bits_beside_other_rows() -> None:
    weight = random_linear(128, 128, 4, 3)
    x = devices.randn(9, 128, seed=9)
    together = kernels.linear(x, weight)
    assert all(torch.equal(together[row], kernels.linear(x[row : row + 1], weight)[0]) for row in range(9))


def test_the_search_nears_the_bound_of_a_gaussian_and_closes_every_ring() -> None:
    values = CODEBOOK_RMS * devices.randn(12, 256, seed=4)
    for bits, bound in ((3, 0.125), (4, 0.0625)):
        symbols = search_symbols(values, bits)
        decoded = codebook(DEVICE)[tile_states(pack_symbols(symbols, bits))].float()
        error = ((decoded - values).square().mean() / values.square().mean()).sqrt().item()
        assert bound < error < 1.2 * bound


def test_a_tile_has_the_same_symbols_however_many_search_beside_it() -> None:
    values = CODEBOOK_RMS * devices.randn(5, 256, seed=8)
    alone = search_symbols(values, 4, batch=1)
    for batch in (None, 3):
        assert torch.equal(search_symbols(values, 4, batch=batch), alone)


def test_an_encoded_matrix_is_near_the_matrix_even_with_outliers() -> None:
    matrix = 0.02 * devices.randn(128, 128, seed=5)
    matrix[3] *= 20
    matrix[:, 7] *= 5
    weight = encode(matrix, 4, generator(6))
    error = (kernels.exl3_effective(weight) - matrix).square().mean().sqrt() / matrix.square().mean().sqrt()
    assert weight.shape == (128, 128)
    assert weight.nbytes == 128 * 128 // 2 + 2 * 2 * 128
    assert error < 0.09


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("exl3") / "miniature"
    small = {"num_hidden_layers": 4, "n_routed_experts": 3, "num_nextn_predict_layers": 0}
    write_miniature(directory, seed=1, overrides={"text_config": small}, experts="exl3")
    return directory


def rank_weights(directory: pathlib.Path, world: int, rank: int, forms: WeightForms) -> RankWeights:
    config, checkpoint = load_text_config(directory), Checkpoint(directory)
    return RankWeights(checkpoint, config, world=world, rank=rank, dtype=torch.float32, device=DEVICE, forms=forms)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("projection", "axis"), [("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)])
def test_the_ranks_cuts_decode_to_the_cuts_of_the_decoded_matrix(
    miniature: pathlib.Path, world: int, projection: str, axis: int
) -> None:
    prefix = f"{EXPERT}.{projection}"
    decoded = WeightForms(experts="decoded")
    whole = rank_weights(miniature, 1, 0, decoded).take_linear(prefix)
    assert isinstance(whole, torch.Tensor)
    parts = []
    for rank in range(world):
        weights = rank_weights(miniature, world, rank, WeightForms(experts="packed"))
        packed = weights.take_linear(prefix)
        assert isinstance(packed, Exl3Weight)
        # A rank reads its part and the vectors along the axis that is not cut, and nothing else.
        assert weights.bytes_read == packed.nbytes
        parts.append(kernels.exl3_effective(packed))
    assert torch.equal(torch.cat(parts, dim=axis), whole)


def test_packed_and_decoded_experts_give_the_same_logits(miniature: pathlib.Path) -> None:
    ids = [5, 17, 900, 33, 1200, 4, 4, 801]
    found = []
    for experts in ("decoded", "packed"):
        weights = rank_weights(miniature, 1, 0, WeightForms(experts=experts))
        model = Glm5NextRank(load_text_config(miniature), weights, SoloGroup())
        found.append(all_logits(model, ids, step=False))
    assert found[0].std() > 1
    assert (found[0] - found[1]).abs().max() < 1e-4


def test_too_few_blocks_for_the_ranks_are_refused(miniature: pathlib.Path) -> None:
    with pytest.raises(UserError, match=r"--tp 4: an EXL3 expert is 384 columns wide .* at most 3 ranks"):
        rank_weights(miniature, 4, 0, WeightForms()).take_linear(f"{EXPERT}.gate_proj")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("another codebook", r"mul1: only the mcg form"),
        ("another multiplier", r"mcg is 5, expected -877912083"),
        ("a trellis of another shape", r"trellis has shape \[16, 24, 60\]"),
        ("no scales", r"suh is missing"),
    ],
)
def test_an_expert_this_engine_cannot_decode_is_named(tmp_path: pathlib.Path, change: str, reason: str) -> None:
    prefix = f"{EXPERT}.gate_proj"
    write_miniature(
        tmp_path / "m",
        seed=1,
        overrides={"text_config": {"num_hidden_layers": 4, "n_routed_experts": 2, "num_nextn_predict_layers": 0}},
        experts="exl3",
    )
    path = tmp_path / "m" / "model-00002-of-00002.safetensors"
    tensors = load_file(path)
    if change == "another codebook":
        tensors[f"{prefix}.mul1"] = torch.tensor(1, dtype=torch.int32)
    elif change == "another multiplier":
        tensors[f"{prefix}.mcg"] = torch.tensor(5, dtype=torch.int32)
    elif change == "a trellis of another shape":
        tensors[f"{prefix}.trellis"] = tensors[f"{prefix}.trellis"][..., :60].contiguous()
    else:
        del tensors[f"{prefix}.suh"]
    save_file(tensors, path)
    (tmp_path / "m" / "model.safetensors.index.json").unlink()
    with pytest.raises(UserError, match=reason):
        rank_weights(tmp_path / "m", 1, 0, WeightForms()).take_linear(prefix)


def test_a_miniature_says_how_its_experts_are_stored(miniature: pathlib.Path) -> None:
    document = json.loads((miniature / "config.json").read_text())
    assert document["quantization_config"] == {"quant_method": "exl3", "bits": 4}
    names = Checkpoint(miniature).entries
    assert not any(".experts." in name and name.endswith(".weight") for name in names)


def test_widths_that_cannot_be_exl3_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="--experts exl3: moe_intermediate_size is 192, expected a multiple of 128"):
        write_miniature(
            tmp_path / "m", seed=1, overrides={"text_config": {"moe_intermediate_size": 192}}, experts="exl3"
        )
