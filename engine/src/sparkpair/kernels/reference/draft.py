# SPDX-License-Identifier: Apache-2.0
"""Operations of the block drafter. Its guesses are verified, so no other batch has to agree with its bits."""

from __future__ import annotations

import torch
from torch import Tensor


def position_rotation(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, head_dim] fp32 for absolute `positions` [n]; the second half repeats the first.

    Angles are formed in fp64: a position of a million times a frequency near 1 has no exact digits left in fp32.
    """
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float64) / head_dim
    angles = positions.double().unsqueeze(1) * theta**-steps
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos().float(), angles.sin().float()


def dynamic_convolution(x: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
    """Each row with the row before it in its block: `x` [B, R, d] -> [B, R, d].

    Tap 0 is the row itself, tap 1 the row before; the first has none. A channel's kernel is `base` [2, d] plus its
    group's part of `dynamic` [B, R, 2, groups].
    """
    group = x.shape[-1] // dynamic.shape[-1]
    kernels = (base + dynamic.repeat_interleave(group, dim=-1)).to(x.dtype)
    before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
    return kernels[:, :, 0] * x + kernels[:, :, 1] * before


def attend_groups(queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
    """`queries` [n, H, D] over `keys`, `values` [m, G, D], each of which serves H / G query heads -> [n, H, D].

    `allowed` [n, m] bool; softmax in fp32 at scale D^-0.5.
    """
    each = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(each, dim=1), values.repeat_interleave(each, dim=1)
    scores = torch.einsum("nhd,mhd->hnm", queries, keys).float() * queries.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1).to(queries.dtype)
    return torch.einsum("hnm,mhd->nhd", weights, values)
