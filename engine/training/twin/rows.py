# SPDX-License-Identifier: Apache-2.0
"""Operations on rows, as in the engine's `kernels.reference.rows`, but differentiable and for any leading axes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

P = ParamSpec("P")
R = TypeVar("R")


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """On a GPU a few kernels in the place of the many that `function` is written with; elsewhere as it is written.

    What is fused is given flat rows, whose number is the same in batches of every kind, so it is compiled once.
    """

    @functools.cache
    def compiled() -> Callable[P, R]:
        # Asked for by a GPU alone: the compiler's library takes seconds to load.
        made: Callable[P, R] = torch.compile(function, dynamic=False, fullgraph=True)
        return made

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in args)
        return (compiled() if on_gpu else function)(*args, **kwargs)

    return call


class Linear(nn.Module):
    """A linear map without or with bias. Master weights are fp32; the product runs in the input's dtype."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (gain * inputs**-0.5))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., in] -> [..., out] in x's dtype."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class Norm(nn.Module):
    """RMSNorm: statistics in fp32, the rounded row times the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """`x` [..., d] -> [..., d] in `dtype`, or x's."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * scaled).to(dtype or x.dtype)


class CentredNorm(nn.Module):
    """LayerNorm with mean subtraction, in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., d] -> [..., d] in x's dtype."""
        wide = functional.layer_norm(x.float(), x.shape[-1:], self.weight, self.bias, self.eps)
        return wide.to(x.dtype)


def l2_normalise(x: Tensor) -> Tensor:
    """`x` [..., D] divided by sqrt(sum of squares + 1e-6), in fp32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit)."""
    return functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`x` [..., H, D] turned by half rotation in fp32, in x's dtype; `cosines`, `sines` [..., D]."""
    wide = x.float()
    left, right = wide.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return (wide * cosines.unsqueeze(-2) + turned * sines.unsqueeze(-2)).to(x.dtype)
