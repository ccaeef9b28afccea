# SPDX-License-Identifier: Apache-2.0
"""Feed-forward blocks on one rank: the dense SwiGLU and the mixture of experts. Widths are divided, results partial."""

from __future__ import annotations

from torch import Tensor

from sparkpair import kernels
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.model.config import TextConfig


class DenseMlp:
    """A clamped SwiGLU of `gate_proj`, `up_proj`, `down_proj`."""

    def __init__(self, config: TextConfig, weights: RankWeights, prefix: str) -> None:
        self.limit = config.swiglu_limit
        self.gate = weights.take_linear(f"{prefix}.gate_proj")
        self.up = weights.take_linear(f"{prefix}.up_proj")
        self.down = weights.take_linear(f"{prefix}.down_proj")

    def forward(self, x: Tensor) -> Tensor:
        """`x` [T, d] -> this rank's partial sum [T, d] in fp32."""
        hidden = kernels.swiglu(kernels.linear(x, self.gate), kernels.linear(x, self.up), self.limit)
        return kernels.linear(hidden, self.down).float()


class MoeMlp:
    """Routed experts and the shared expert; every rank runs the same experts, each its share of their width."""

    def __init__(self, config: TextConfig, weights: RankWeights, prefix: str) -> None:
        self.config = config
        self.router = weights.take(f"{prefix}.gate.weight")
        self.bias = weights.take(f"{prefix}.gate.e_score_correction_bias")
        self.experts = [
            (
                weights.take_linear(f"{prefix}.experts.{expert}.gate_proj"),
                weights.take_linear(f"{prefix}.experts.{expert}.up_proj"),
                weights.take_linear(f"{prefix}.experts.{expert}.down_proj"),
            )
            for expert in range(config.num_experts)
        ]
        self.shared = DenseMlp(config, weights, f"{prefix}.shared_experts") if config.shared_experts else None

    def forward(self, x: Tensor) -> Tensor:
        """`x` [T, d] -> this rank's partial sum [T, d] in fp32, routed and shared experts together."""
        config = self.config
        experts, weights = kernels.route(
            x,
            self.router,
            self.bias,
            count=config.experts_per_token,
            groups=config.expert_groups,
            groups_kept=config.expert_groups_kept,
            normalise=config.norm_topk_prob,
            scaling=config.routed_scaling,
        )
        routed = kernels.routed_experts(x, experts, weights, self.experts, config.swiglu_limit)
        return routed if self.shared is None else kernels.add_shared(routed, self.shared.forward(x))
