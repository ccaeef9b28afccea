# SPDX-License-Identifier: Apache-2.0
"""Matrix products and gates whose rows do not depend on how many rows are computed together.

The CPU libraries round a product differently for different numbers of rows, and for rows that lie differently in
memory. Here a product is always made from a fresh copy in tiles of one height, so that a row has the same bits
alone, in a verify window, in a batch of requests and in a prompt. Sums along a row are made in one order (`row_sum`).
The libraries also have two roundings of exp, one
for whole vectors and one for what is left over at the end; here it is always taken of whole vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Four rows cost hardly more than one, which would take another code path than several.
TILE_ROWS = 4

# With fewer outputs than this the position of a row within its tile begins to matter.
MIN_OUTPUTS = 8

# Elements that are a whole number of vectors on every CPU.
VECTOR = 64


def tiled_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [T, in] times `weight` [out, in] transposed -> [T, out], in x's dtype; each row as if it were alone."""
    count = x.shape[0]
    if count == 0:
        return x.new_empty(0, weight.shape[0])
    outputs = weight.shape[0]
    if outputs < MIN_OUTPUTS:
        weight = functional.pad(weight, (0, 0, 0, MIN_OUTPUTS - outputs))
    padded = x.new_zeros(count + -count % TILE_ROWS, x.shape[1])
    padded[:count] = x
    if len(padded) == TILE_ROWS:  # a decode's few rows: nothing to be put together
        return functional.linear(padded, weight)[:count, :outputs]
    tiles = [functional.linear(tile, weight) for tile in padded.view(-1, TILE_ROWS, x.shape[1])]
    return torch.cat(tiles)[:count, :outputs]


def row_sum(x: Tensor, axis: int = -1) -> Tensor:
    """Sum over an axis, which stays with width 1; each row as if it were alone.

    On a GPU the library adds a row in another order when there are more rows. There, halves are added element by
    element until one is left, which is the same order always; on a CPU the library's own order is.
    """
    if not x.is_cuda:
        return x.sum(axis, keepdim=True)
    while (width := x.shape[axis]) > 1:
        half = width // 2
        odd = x.narrow(axis, 2 * half, width - 2 * half)
        x = x.narrow(axis, 0, half) + x.narrow(axis, half, half)
        if width % 2:
            x = torch.cat([x, odd], dim=axis)
    return x


def row_mean(x: Tensor) -> Tensor:
    """Mean over the last axis, [..., 1]; each row as if it were alone."""
    return row_sum(x) / x.shape[-1]


def exp(x: Tensor) -> Tensor:
    """e to the power of `x`, in x's shape and dtype; each element as if it were alone."""
    count = x.numel()
    if count % VECTOR == 0:
        return torch.exp(x.contiguous())
    padded = x.new_zeros(count + -count % VECTOR)
    padded[:count] = x.flatten()
    return torch.exp(padded)[:count].view(x.shape)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), in x's dtype."""
    return 1.0 / (1.0 + exp(-x))


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)), in x's dtype."""
    return x / (1.0 + exp(-x))
