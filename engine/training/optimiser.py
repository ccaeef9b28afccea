# SPDX-License-Identifier: Apache-2.0
"""Muon for the matrices inside the model, AdamW for everything else, behind one learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
BETAS = (0.9, 0.95)
DECAY = 0.05

# How much faster than the rest a table of embeddings learns: each row is used seldom, and its values are large.
EMBEDDING_RATE = 4.0
OTHER_RATE = 0.5

# Matrices that feed sums of very different sizes, or a softmax: they learn like vectors.
_NO_MATRICES = (
    "embed_tokens",
    "lm_head",
    "hc_",
    "conv1d",
    "mlp.gate.weight",
    "compress_ape",
    "codebook",
    "base_kernel",
)


def orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Near the orthogonal factors of `matrices` [n, a, b], by Newton and Schulz's iteration of fifth order."""
    x = matrices.to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


class _Part:
    """The parameters that are stepped together."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], device: torch.device) -> None:
        self.matrices: dict[tuple[int, ...], list[Tensor]] = {}
        embeddings, others = [], []
        for name, parameter in named:
            if "embed_tokens" in name:
                embeddings.append(parameter)
            elif parameter.dim() not in (2, 3) or any(part in name for part in _NO_MATRICES):
                others.append(parameter)
            else:
                self.matrices.setdefault(tuple(parameter.shape), []).append(parameter)
        self.momentum = {shape: [torch.zeros_like(one) for one in some] for shape, some in self.matrices.items()}
        groups = [
            {"params": some, "scale": scale}
            for some, scale in ((embeddings, EMBEDDING_RATE), (others, OTHER_RATE))
            if some
        ]
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, weight_decay=0.0, fused=device.type == "cuda")
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step by the gradients that are there."""
        for group in self.adam.param_groups:
            group["lr"] = rate * group["scale"]
        self.adam.step()
        for shape, parameters in self.matrices.items():
            momentum = self.momentum[shape]
            grads = [parameter.grad for parameter in parameters]
            torch._foreach_lerp_(momentum, grads, 1 - MOMENTUM)
            looked = torch._foreach_lerp(grads, momentum, MOMENTUM)
            stacked = torch.stack(list(looked)).view(-1, *shape[-2:])
            updates = orthogonal(stacked, self._dtype).to(stacked.dtype) * (0.2 * max(shape[-2:]) ** 0.5)
            torch._foreach_mul_(parameters, 1 - rate * DECAY)
            torch._foreach_add_(parameters, list(updates.view(len(parameters), *shape).unbind(0)), alpha=-rate)


class Optimiser:
    """Steps all parameters of a model that want a gradient; those of the vision tower only where pictures were seen."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._parts = [
            _Part([pair for pair in named if (".visual." in pair[0]) == pictured], device)
            for pictured in sorted({".visual." in name for name, _ in named})
        ]

    def step(self, rate: float, *, pictures: bool = True) -> None:
        """One step at this learning rate. Without `pictures` the tower stays: its momentum alone would move it."""
        for part in self._parts[: len(self._parts) if pictures else 1]:
            part.step(rate)

    def state(self) -> list[dict[str, Any]]:
        """What `load` needs to go on."""
        return [{"adam": part.adam.state_dict(), "momentum": list(part.momentum.values())} for part in self._parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Go on from a state of the same model."""
        for part, saved in zip(self._parts, state, strict=True):
            part.adam.load_state_dict(saved["adam"])
            for own, kept in zip(part.momentum.values(), saved["momentum"], strict=True):
                for one, other in zip(own, kept, strict=True):
                    one.copy_(other)
