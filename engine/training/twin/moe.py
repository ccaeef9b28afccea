# SPDX-License-Identifier: Apache-2.0
"""Feed-forward blocks for training: the dense SwiGLU, and all experts at once, weighted by what the router chose.

A miniature has so few experts that computing those not chosen costs less than sorting rows; their weight is zero.
"""

from __future__ import annotations

import torch
from sparkpair.model.config import TextConfig
from torch import Tensor, nn
from torch.nn import functional

from training.twin.rows import Linear, fused, swiglu


class Mlp(nn.Module):
    """A clamped SwiGLU."""

    def __init__(self, width: int, inner: int, limit: float, *, bias: bool = False) -> None:
        super().__init__()
        self.limit = limit
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias, gain=0.5)

    @fused
    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., d] -> [..., d]."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x), self.limit))


class Router(nn.Module):
    """The router's weight and the correction bias that evens out how often experts are chosen."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(config.num_experts, config.hidden_size) * config.hidden_size**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts))
        # Rows that chose each expert since the last `balance`.
        self.register_buffer("chosen", torch.zeros(config.num_experts), persistent=False)


class Experts(nn.Module):
    """The routed experts' matrices, stacked: gate, up [E, w, d], down [E, d, w]."""

    def __init__(self, count: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.randn(count, inner, width) * width**-0.5)
        self.up_proj = nn.Parameter(torch.randn(count, inner, width) * width**-0.5)
        self.down_proj = nn.Parameter(torch.randn(count, width, inner) * (0.25 * inner**-0.5))


class Moe(nn.Module):
    """Routed experts and the shared expert. Raises ValueError for expert groups, which a miniature has not."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        if config.expert_groups != 1:
            raise ValueError(f"n_group is {config.expert_groups}; the twin routes among all experts only")
        self.config = config
        self.gate = Router(config)
        self.experts = Experts(config.num_experts, config.hidden_size, config.moe_intermediate_size)
        inner = config.moe_intermediate_size * config.shared_experts
        self.shared_experts = Mlp(config.hidden_size, inner, config.swiglu_limit) if inner else None

    @fused
    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., d] -> [..., d]."""
        config, experts = self.config, self.experts
        weights = self._route(x)
        gate = functional.linear(x, experts.gate_proj.flatten(0, 1).to(x.dtype))
        up = functional.linear(x, experts.up_proj.flatten(0, 1).to(x.dtype))
        hidden = swiglu(gate, up, config.swiglu_limit).unflatten(-1, (config.num_experts, -1))
        weighted = (hidden * weights.unsqueeze(-1).to(x.dtype)).flatten(-2)
        down = experts.down_proj.transpose(0, 1).flatten(1)  # [d, E w]
        routed = functional.linear(weighted, down.to(x.dtype))
        return routed if self.shared_experts is None else routed + self.shared_experts(x)

    def _route(self, x: Tensor) -> Tensor:
        """The weight of every expert for every row, [..., E] fp32; zero for those not chosen."""
        config = self.config
        scores = torch.sigmoid(functional.linear(x.float(), self.gate.weight))
        choice = scores.detach() + self.gate.e_score_correction_bias
        order = torch.sort(choice, dim=-1, descending=True, stable=True).indices
        picked = torch.zeros_like(choice).scatter(-1, order[..., : config.experts_per_token], 1.0)
        if self.training:
            self.gate.chosen.add_(picked.detach().flatten(0, -2).sum(0))
        kept = scores * picked
        if config.norm_topk_prob:
            kept = kept / (kept.sum(-1, keepdim=True) + 1e-20)
        return kept * config.routed_scaling


@torch.no_grad()
def balance(model: nn.Module, rate: float) -> None:
    """Make experts that were chosen seldom a little more attractive, and the others less, by `rate`."""
    for module in model.modules():
        if isinstance(module, Router):
            module.e_score_correction_bias.add_(rate * torch.sign(module.chosen.mean() - module.chosen))
            module.chosen.zero_()
