# SPDX-License-Identifier: Apache-2.0
"""Operations of the vision tower. A picture is always encoded whole, so no other batch has to agree with its bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Queries that are compared with all keys at a time: the scores of a large picture would take gigabytes at once.
QUERIES = 128


def biased_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x` [n, in] times `weight` [out, in] transposed, plus `bias` [out] -> [n, out]."""
    return functional.linear(x, weight, bias)


def gelu(x: Tensor) -> Tensor:
    """The exact GELU, by the error function."""
    return functional.gelu(x)


def axial_rotation(rows: Tensor, columns: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, head_dim] fp32 of patches at `rows`, `columns` [n].

    A quarter of the head turns with the row, a quarter with the column; the second half repeats the first.
    """
    count = head_dim // 4
    steps = torch.arange(count, device=rows.device, dtype=torch.float32) * 2 / (2 * count)
    frequencies = theta**-steps
    angles = torch.cat([rows.float().unsqueeze(1) * frequencies, columns.float().unsqueeze(1) * frequencies], dim=1)
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`x` [n, H, D] turned by half rotation in fp32, in x's dtype; `cosines`, `sines` [n, D]."""
    wide = x.float()
    left, right = wide.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return (wide * cosines.unsqueeze(1) + turned * sines.unsqueeze(1)).to(x.dtype)


def attend_all(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Every patch attends to every patch: [n, H, D] each, softmax in fp32 at scale D^-0.5. Returns [n, H, D]."""
    attended = torch.empty_like(queries)
    for start in range(0, queries.shape[0], QUERIES):
        some = slice(start, start + QUERIES)
        scores = torch.einsum("nhd,mhd->hnm", queries[some], keys).float() * queries.shape[-1] ** -0.5
        weights = torch.softmax(scores, dim=-1).to(queries.dtype)
        attended[some] = torch.einsum("hnm,mhd->nhd", weights, values)
    return attended
