# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts: routing by sigmoid scores with a correction bias, and the experts' clamped SwiGLU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkpair.kernels.reference.linear import linear
from sparkpair.kernels.reference.rows import swiglu
from sparkpair.kernels.reference.tiles import sigmoid
from sparkpair.kernels.weights import Weight

ExpertWeights = tuple[Weight, Weight, Weight]  # gate [w, d], up [w, d], down [d, w]


def route(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    count: int,
    groups: int,
    groups_kept: int,
    normalise: bool,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """Which experts serve each row, and with what weight.

    `x` [T, d], `weight` [E, d], `bias` [E]. Choice is by sigmoid(logit) + bias, largest first and the lower expert on
    ties; the weight comes from the sigmoid alone. With several groups only the best `groups_kept` stay, a group's score
    being the sum of its two best choices. Returns expert ids [T, count] and weights [T, count] in fp32.
    """
    scores = sigmoid(linear(x.float(), weight.float()))
    choice = scores + bias.float()
    if groups > 1:
        grouped = choice.view(choice.shape[0], groups, -1)
        group_scores = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
        best = torch.sort(group_scores, dim=1, descending=True, stable=True).indices[:, :groups_kept]
        keep = torch.zeros_like(group_scores, dtype=torch.bool).scatter(1, best, True)
        choice = grouped.masked_fill(~keep.unsqueeze(-1), 0.0).flatten(1)
    experts = torch.sort(choice, dim=1, descending=True, stable=True).indices[:, :count]
    weights = scores.gather(1, experts)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return experts, weights * scaling


def routed_experts(
    x: Tensor, experts: Tensor, weights: Tensor, matrices: Sequence[ExpertWeights], limit: float
) -> Tensor:
    """Weighted sum of each row's experts, [T, d] fp32, added in pick order so that no other row changes the sum.

    `experts`, `weights` [T, k] as of `route`; `matrices[e]` are expert e's weights (on a rank: its share of the width).
    """
    slots = torch.zeros(*experts.shape, x.shape[1], dtype=torch.float32, device=x.device)
    for expert in torch.unique(experts).tolist():
        gate, up, down = matrices[expert]
        rows, picks = torch.nonzero(experts == expert, as_tuple=True)
        hidden = swiglu(linear(x[rows], gate), linear(x[rows], up), limit)
        slots[rows, picks] = linear(hidden, down).float() * weights[rows, picks].unsqueeze(-1)
    total = slots[:, 0]
    for pick in range(1, slots.shape[1]):
        total = total + slots[:, pick]
    return total


def add_shared(routed: Tensor, shared: Tensor) -> Tensor:
    """The shared expert's output joins the routed sum last, in fp32."""
    return routed + shared.float()
