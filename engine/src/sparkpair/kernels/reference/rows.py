# SPDX-License-Identifier: Apache-2.0
"""Operations on rows: norms and the clamped SwiGLU. A row's bits depend on that row alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sparkpair.kernels.reference.tiles import row_mean, row_sum, sigmoid, silu


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis: statistics in fp32, rounded to x's dtype, then multiplied by `weight` [d]."""
    wide = x.float()
    scaled = wide * torch.rsqrt(row_mean(wide.square()) + eps)
    return weight * scaled.to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm over the last axis with mean subtraction, computed in fp32, returned in x's dtype."""
    wide = functional.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), eps)
    return wide.to(x.dtype)


def rms_norm_gated(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of `x` [..., D] times sigmoid(`gate`), all in fp32 with the weight product included; x's dtype."""
    wide = x.float()
    scaled = wide * torch.rsqrt(row_mean(wide.square()) + eps)
    return (scaled * weight.float() * sigmoid(gate.float())).to(x.dtype)


def l2_normalise(x: Tensor) -> Tensor:
    """`x` [..., D] divided by sqrt(sum of squares + 1e-6), in fp32."""
    wide = x.float()
    return wide * torch.rsqrt(row_sum(wide.square()) + 1e-6)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit): the gate is clamped from above only, before the silu."""
    return silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
