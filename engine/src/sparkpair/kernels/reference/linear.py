# SPDX-License-Identifier: Apache-2.0
"""The linear map, whatever form its weight is held in."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkpair.kernels.reference.exl3 import exl3_linear
from sparkpair.kernels.reference.tiles import tiled_linear
from sparkpair.kernels.weights import FP8_COLUMNS, Q4_COLUMNS, Exl3Weight, Fp8Weight, Q4Weight, Weight


def linear(x: Tensor, weight: Weight) -> Tensor:
    """`x` [T, in] times `weight` [out, in] transposed -> [T, out], in x's dtype."""
    if isinstance(weight, Exl3Weight):
        return exl3_linear(x, weight)
    if isinstance(weight, Fp8Weight):
        return tiled_linear(x, fp8_matrix(weight).to(x.dtype))
    if isinstance(weight, Q4Weight):
        return tiled_linear(x, q4_matrix(weight).to(x.dtype))
    return tiled_linear(x, weight)


def fp8_matrix(weight: Fp8Weight) -> Tensor:
    """The de-quantised matrix, fp32 [out, in]."""
    return weight.codes.float() * _spread(weight.scales, FP8_COLUMNS, weight.offset, weight.codes.shape[1])


def q4_matrix(weight: Q4Weight) -> Tensor:
    """The de-quantised matrix, fp32 [out, in]."""
    codes = torch.stack([weight.codes & 15, weight.codes >> 4], dim=-1).flatten(1)[:, : weight.columns]
    scales = _spread(weight.scales.float(), Q4_COLUMNS, weight.offset, weight.columns)
    return _spread(weight.lows.float(), Q4_COLUMNS, weight.offset, weight.columns) + codes * scales


def _spread(blocks: Tensor, width: int, offset: int, columns: int) -> Tensor:
    """Each block's value at every column it covers, [out, columns]."""
    return blocks.repeat_interleave(width, dim=1)[:, offset : offset + columns]
