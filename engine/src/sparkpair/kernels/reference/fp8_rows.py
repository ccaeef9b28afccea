# SPDX-License-Identifier: Apache-2.0
"""Rows stored as 8-bit floating point with one power-of-two scale a row, so that reading them back is exact.

A row of n values takes n + 16 bytes: n e4m3 codes, the scale as fp32, 12 zero bytes. The values are rounded to bf16
first. With the largest magnitude a, the scale is 2^(ceil(log2 a) - 8), so the largest code lies between 128 and 256.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Bytes of a row beside its codes.
ROW_OVERHEAD = 16

LEAST_EXPONENT, MOST_EXPONENT = -126, 127


def encode_fp8_rows(rows: Tensor) -> Tensor:
    """`rows` [n, width] -> uint8 [n, width + 16]."""
    values = rows.to(torch.bfloat16).float()
    largest = values.abs().amax(1)
    mantissa, exponent = torch.frexp(largest)
    # frexp's mantissa lies in [0.5, 1): log2 is whole exactly where it is one half.
    ceiling = exponent - (mantissa == 0.5).int()
    shift = torch.where(largest == 0, LEAST_EXPONENT, (ceiling - 8).clamp(LEAST_EXPONENT, MOST_EXPONENT))
    scale = torch.ldexp(torch.ones_like(largest), shift)
    stored = torch.zeros(rows.shape[0], rows.shape[1] + ROW_OVERHEAD, dtype=torch.uint8, device=rows.device)
    stored[:, : rows.shape[1]] = (values / scale.unsqueeze(1)).to(torch.float8_e4m3fn).view(torch.uint8)
    stored[:, rows.shape[1] : rows.shape[1] + 4] = scale.unsqueeze(1).view(torch.uint8)
    return stored


def decode_fp8_rows(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [..., width + 16] -> the values [..., width] in `dtype`."""
    width = stored.shape[-1] - ROW_OVERHEAD
    codes = stored[..., :width].contiguous().view(torch.float8_e4m3fn).float()
    scale = stored[..., width : width + 4].contiguous().view(torch.float32)
    return (codes * scale).to(dtype)
