# SPDX-License-Identifier: Apache-2.0
"""One KDA layer's attention on one rank: heads are divided, the result is a partial sum."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.cache.state import KdaState, KdaWindow, Span
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.grid import GRID
from sparkpair.kernels.weights import stack_rows
from sparkpair.model.config import TextConfig


class KdaAttention:
    """Weights and forward pass of one layer's `self_attn`."""

    def __init__(self, config: TextConfig, weights: RankWeights, prefix: str) -> None:
        self.config = config
        take = weights.take
        self.qkv = stack_rows([weights.take_linear(f"{prefix}.{name}_proj") for name in "qkv"])
        self.conv = torch.cat([take(f"{prefix}.{name}_conv1d.weight").squeeze(1) for name in "qkv"])
        self.f_a = take(f"{prefix}.f_a_proj.weight")
        self.f_b = take(f"{prefix}.f_b_proj.weight")
        self.g_a = take(f"{prefix}.g_a_proj.weight")
        self.g_b = take(f"{prefix}.g_b_proj.weight")
        self.b = take(f"{prefix}.b_proj.weight")
        self.a_log = take(f"{prefix}.A_log").flatten()
        self.heads = self.a_log.shape[0]
        self.dt_bias = take(f"{prefix}.dt_bias").view(self.heads, -1)
        self.o_norm = take(f"{prefix}.o_norm.weight")
        self.o = weights.take_linear(f"{prefix}.o_proj")

    def forward(self, x: Tensor, spans: list[Span], layer: int) -> Tensor:
        """`x` [T, d] normed rows -> this rank's partial sum [T, d] in fp32; advances each span's state."""
        config = self.config
        shape = (-1, self.heads, config.linear_head_dim)
        projected = kernels.linear(x, self.qkv)
        forget = kernels.linear(kernels.linear(x, self.f_a), self.f_b).view(shape)
        decay = kernels.kda_gates(forget, self.a_log, self.dt_bias, config.gate_lower_bound)
        beta = kernels.sigmoid(kernels.linear(x, self.b)).float()
        gate = kernels.linear(kernels.linear(x, self.g_a), self.g_b).view(shape)
        mixed = x.new_empty(x.shape[0], self.heads, config.linear_head_dim)
        for span in spans:
            state = span.state.layers[layer]
            assert isinstance(state, KdaState)
            rows = span.rows
            convolved, tail = kernels.short_convolution(projected[rows], self.conv, state.tail)
            q, k, v = (part.view(shape) for part in convolved.chunk(3, dim=-1))
            q = kernels.l2_normalise(q) * config.linear_head_dim**-0.5
            k, v = kernels.l2_normalise(k), v.float()
            if span.decode:
                out, memory = kernels.kda_recurrent(q, k, v, decay[rows], beta[rows], state.memory)
                state.window = KdaWindow(projected[rows], k, v, decay[rows], beta[rows], memory)
            else:
                inputs = (q, k, v, decay[rows], beta[rows])
                out, state.memory = self._prompt(inputs, state.memory, span.state.position)
                # A copy: what is kept must not hold on to the rows of the whole portion.
                state.tail = tail.clone()
            mixed[rows] = out.to(x.dtype)
        normed = kernels.rms_norm_gated(mixed, gate, self.o_norm, config.rms_norm_eps)
        return kernels.linear(normed.flatten(1), self.o).float()

    @staticmethod
    def _prompt(
        rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], memory: Tensor, position: int
    ) -> tuple[Tensor, Tensor]:
        """The chunked form with chunks that end on the position grid; `position` is the first row's."""
        count = rows[0].shape[0]
        to_grid = min(-position % GRID, count)
        pieces = []
        for part in (slice(0, to_grid), slice(to_grid, count)):
            if part.start < part.stop:
                q, k, v, decay, beta = (tensor[part] for tensor in rows)
                out, memory = kernels.kda_chunked(q, k, v, decay, beta, memory, GRID)
                pieces.append(out)
        return torch.cat(pieces), memory
