# SPDX-License-Identifier: Apache-2.0
"""The reference kernels against published vectors and against the plainest form of each formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair import kernels

from tests.engine import devices


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return devices.randn(*shape, seed=seed)


def test_the_mixing_matrix_equals_the_sinkhorn_vector() -> None:
    logits = devices.tensor([[2, 0, -1, 0.5], [0, 1, 0, -2], [1, 1, 3, 0], [-1, 0, 0.5, 2]])
    # With weights of zero the logits are the base alone.
    base = torch.cat([devices.zeros(8), logits.flatten()])
    _, _, comb = kernels.hyper_weights(
        noise(1, 4, 8), devices.zeros(24, 32), base, devices.ones(3), norm_eps=1e-5, hc_eps=1e-6, iterations=20
    )
    expected = devices.tensor(
        [
            [0.6753637, 0.1167620, 0.0285729, 0.1793005],
            [0.1823727, 0.6332886, 0.1549702, 0.0293675],
            [0.1111858, 0.1420359, 0.6981090, 0.0486682],
            [0.0310768, 0.1079125, 0.1183469, 0.7426627],
        ]
    )
    assert torch.allclose(comb[0], expected, atol=2e-6)


@given(st.integers(0, 2**31), st.floats(0.1, 3.0))
@settings(max_examples=25, deadline=None)
def test_the_columns_of_the_mixing_matrix_sum_to_one(seed: int, strength: float) -> None:
    _, _, comb = kernels.hyper_weights(
        noise(3, 4, 8, seed=seed),
        strength * noise(24, 32, seed=seed + 1),
        noise(24, seed=seed + 2),
        devices.ones(3),
        norm_eps=1e-5,
        hc_eps=1e-6,
        iterations=20,
    )
    assert (comb.sum(1) - 1).abs().max() < 1e-5


def test_the_old_streams_are_mixed_by_the_transpose() -> None:
    streams = devices.tensor([[[1.0], [10.0]]])
    comb = devices.tensor([[[0.0, 1.0], [0.0, 0.0]]])
    spread = kernels.hyper_spread(streams, devices.tensor([[100.0]]), devices.tensor([[1.0, 2.0]]), comb)
    assert spread.flatten().tolist() == [100.0, 201.0]


def test_the_recurrence_equals_the_published_vector() -> None:
    q = devices.tensor([[1, 0], [0.6, 0.8]]).view(2, 1, 2) * 2**-0.5
    k = devices.tensor([[0.8, 0.6], [0, 1]]).view(2, 1, 2)
    v = devices.tensor([[1.0, 2], [3, -1]]).view(2, 1, 2)
    decay = devices.tensor([[-0.5, -1], [-0.1, -2]]).view(2, 1, 2)
    beta = devices.tensor([[0.5], [0.9]])
    out, state = kernels.kda_recurrent(q, k, v, decay, beta, devices.zeros(1, 2, 2))
    assert torch.allclose(out.view(2, 2), devices.tensor([[0.2828427, 0.5656854], [1.6832034, -0.1974114]]), atol=1e-6)
    assert torch.allclose(state[0], devices.tensor([[0.3619350, 0.7238699], [2.7040601, -0.8918799]]), atol=1e-6)


@given(st.integers(1, 150), st.integers(1, 64), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_the_chunked_form_equals_the_recurrence_for_any_chunk(count: int, chunk: int, seed: int) -> None:
    heads, width = 2, 6
    q, k = (kernels.l2_normalise(noise(count, heads, width, seed=seed + part)).double() for part in (0, 1))
    v = noise(count, heads, width, seed=seed + 2).double()
    decay = -5 * torch.sigmoid(noise(count, heads, width, seed=seed + 3).double())
    beta = torch.sigmoid(noise(count, heads, seed=seed + 4).double())
    state = noise(heads, width, width, seed=seed + 5).double()
    serial, serial_state = kernels.kda_recurrent(q, k, v, decay, beta, state)
    chunked, chunked_state = kernels.kda_chunked(q, k, v, decay, beta, state, chunk)
    assert (serial - chunked).abs().max() < 1e-10
    assert (serial_state - chunked_state).abs().max() < 1e-10


def test_a_chunk_of_strongest_decay_does_not_overflow() -> None:
    count = 64
    q = k = kernels.l2_normalise(noise(count, 1, 4))
    v = noise(count, 1, 4, seed=1)
    decay = devices.full((count, 1, 4), -5.0)
    beta = devices.ones(count, 1)
    out, state = kernels.kda_chunked(q, k, v, decay, beta, devices.zeros(1, 4, 4), count)
    assert out.isfinite().all()
    assert state.isfinite().all()


@pytest.mark.parametrize("cuts", [[5], [1, 2, 3], [10]], ids=str)
def test_the_short_convolution_carries_its_tail(cuts: list[int]) -> None:
    x, weight = noise(12, 6), noise(6, 4, seed=1)
    tail = devices.zeros(3, 6)
    whole, whole_tail = kernels.short_convolution(x, weight, tail)
    pieces = []
    for start, stop in zip([0, *cuts], [*cuts, 12], strict=True):
        piece, tail = kernels.short_convolution(x[start:stop], weight, tail)
        pieces.append(piece)
    assert torch.allclose(torch.cat(pieces), whole, atol=1e-6)
    assert torch.equal(tail, whole_tail)


def test_the_forget_gate_stays_within_its_bound() -> None:
    decay = kernels.kda_gates(100 * noise(50, 2, 4), noise(2), noise(2, 4), -5.0)
    assert decay.min() >= -5.0
    assert decay.max() <= 0.0


def test_selection_takes_the_lower_pool_on_ties_and_always_the_tail() -> None:
    indices, valid = kernels.select_tokens(devices.zeros(1, 5), 17, topk=4, kpool=2, select_tail=True)
    # Position 17 completes pool 8; with all scores alike the first two of the five pools are taken.
    assert indices[0][valid[0]].tolist() == [0, 1, 2, 3]
    indices, valid = kernels.select_tokens(devices.zeros(1, 5), 10, topk=4, kpool=2, select_tail=True)
    assert indices[0][valid[0]].tolist() == [0, 1, 2, 3, 10]


def test_selection_never_looks_ahead() -> None:
    scores = devices.arange(40.0).expand(30, 40)  # later pools score higher
    indices, valid = kernels.select_tokens(scores, 100, topk=16, kpool=4, select_tail=True)
    positions = 100 + devices.arange(30).unsqueeze(1)
    assert (indices.masked_fill(~valid, 0) <= positions).all()
    assert valid.sum(1).max() <= 16 + 3


def test_gathered_attention_equals_masked_attention() -> None:
    queries, latents = noise(3, 2, 4), noise(10, 5, seed=1)
    keys, values = noise(2, 4, 5, seed=2), noise(2, 6, 5, seed=3)
    allowed = devices.zeros(3, 10, dtype=torch.bool)
    chosen = devices.tensor([[0, 3, 9], [1, 2, 4], [5, 6, 7]])
    allowed.scatter_(1, chosen, True)
    masked = kernels.attend_latents(queries, latents, keys, values, allowed)
    gathered = kernels.attend_latents(queries, latents[chosen], keys, values, devices.ones(3, 3, dtype=torch.bool))
    assert torch.allclose(masked, gathered, atol=1e-6)


def test_absorbed_attention_equals_expanded_attention() -> None:
    queries, latents = noise(3, 2, 4), noise(10, 5, seed=1)
    keys, values = noise(2, 4, 5, seed=2), noise(2, 6, 5, seed=3)
    allowed = devices.ones(3, 10, dtype=torch.bool)
    expanded_keys = torch.einsum("lr,hnr->hln", latents, keys)
    expanded_values = torch.einsum("lr,hvr->hlv", latents, values)
    weights = torch.softmax(torch.einsum("thn,hln->thl", queries, expanded_keys) * 4**-0.5, dim=-1)
    expected = torch.einsum("thl,hlv->thv", weights, expanded_values)
    assert torch.allclose(kernels.attend_latents(queries, latents, keys, values, allowed), expected, atol=1e-5)


def test_the_gate_is_clamped_from_above_only() -> None:
    limit = 10.0
    out = kernels.swiglu(devices.tensor([50.0, -50.0, 1.0]), devices.tensor([1.0, 1.0, -50.0]), limit)
    silu = torch.nn.functional.silu
    assert torch.allclose(
        out, devices.tensor([silu(devices.tensor(10.0)), silu(devices.tensor(-50.0)), -10 * silu(devices.tensor(1.0))])
    )


def test_routing_takes_the_lower_expert_on_ties_and_weighs_without_the_bias() -> None:
    x = devices.zeros(1, 2)
    bias = devices.tensor([0.0, 0.5, 0.5, 0.0])
    experts, weights = kernels.route(
        x, devices.zeros(4, 2), bias, count=3, groups=1, groups_kept=1, normalise=True, scaling=2.5
    )
    assert experts.tolist() == [[1, 2, 0]]
    assert torch.allclose(weights, devices.full((1, 3), 2.5 / 3))


def test_only_the_best_groups_of_experts_are_chosen() -> None:
    bias = devices.tensor([0.9, 0.0, 0.5, 0.5])  # group sums: 0.9 + 2 s against 1.0 + 2 s
    experts, _ = kernels.route(
        devices.zeros(1, 2), devices.zeros(4, 2), bias, count=2, groups=2, groups_kept=1, normalise=True, scaling=1.0
    )
    assert experts.tolist() == [[2, 3]]


def test_a_rows_experts_add_up_the_same_beside_other_rows() -> None:
    matrices = [(noise(6, 4, seed=e), noise(6, 4, seed=e + 50), noise(4, 6, seed=e + 100)) for e in range(4)]
    x = noise(5, 4)
    experts, weights = kernels.route(
        x, noise(4, 4, seed=9), devices.zeros(4), count=2, groups=1, groups_kept=1, normalise=True, scaling=2.5
    )
    together = kernels.routed_experts(x, experts, weights, matrices, 10.0)
    for row in range(5):
        alone = kernels.routed_experts(x[row : row + 1], experts[row : row + 1], weights[row : row + 1], matrices, 10.0)
        assert torch.allclose(together[row], alone[0], atol=1e-6)
