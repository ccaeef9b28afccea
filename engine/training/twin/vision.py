# SPDX-License-Identifier: Apache-2.0
"""The vision tower for training: several pictures share a row of patches and do not see each other."""

from __future__ import annotations

import torch
from sparkpair.model.vision import MERGER_NORM_EPS
from sparkpair.model.vision_config import VisionConfig
from torch import Tensor, nn
from torch.nn import functional

from training.twin.moe import Mlp
from training.twin.rows import CentredNorm, Linear, Norm, rotate, swiglu

MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


class _Attention(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=True)
        self.proj = Linear(config.hidden_size, config.hidden_size, bias=True, gain=0.5)
        self.q_norm = Norm(config.head_dim, config.rms_norm_eps)
        self.k_norm = Norm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], together: Tensor) -> Tensor:
        """`x` [R, L, w]; `together` [R, L, L] says which patches are of one picture."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = rotate(self.q_norm(q), *turn), rotate(self.k_norm(k), *turn)
        dots = torch.einsum("rnhd,rmhd->rhnm", q, k).float() * q.shape[-1] ** -0.5
        weights = torch.softmax(dots.masked_fill(~together.unsqueeze(1), -1e30), dim=-1).to(v.dtype)
        return self.proj(torch.einsum("rhnm,rmhd->rnhd", weights, v).flatten(2))


class _Block(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = Norm(config.hidden_size, config.rms_norm_eps)
        self.norm2 = Norm(config.hidden_size, config.rms_norm_eps)
        self.attn = _Attention(config)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size, config.swiglu_limit, bias=True)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], together: Tensor) -> Tensor:
        """`x` [R, L, w] -> [R, L, w]."""
        x = x + self.attn(self.norm1(x), turn, together)
        return x + self.mlp(self.norm2(x))


class _Merger(nn.Module):
    def __init__(self, out: int, inner: int, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.proj = Linear(out, out)
        self.post_projection_norm = CentredNorm(out, MERGER_NORM_EPS)
        self.gate_proj = Linear(out, inner)
        self.up_proj = Linear(out, inner)
        self.down_proj = Linear(inner, out)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., out] -> [..., out]."""
        x = functional.gelu(self.post_projection_norm(self.proj(x)))
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x), self.limit))


class _Convolution(nn.Module):
    """A convolution whose stride is its kernel: one linear map over what lies under it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        inputs = torch.Size(shape[1:]).numel()
        self.weight = nn.Parameter(torch.randn(shape) * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(shape[0]))


class _PatchEmbed(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.proj = _Convolution(
            (config.hidden_size, config.channels, config.temporal_patch, config.patch, config.patch)
        )


class Tower(nn.Module):
    """`model.visual`."""

    def __init__(self, config: VisionConfig, projection: int) -> None:
        """`projection` is the width inside the merger."""
        super().__init__()
        self.config = config
        self.patch_embed = _PatchEmbed(config)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.post_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.downsample = _Convolution((config.out_hidden_size, config.hidden_size, config.merge, config.merge))
        self.merger = _Merger(config.out_hidden_size, projection, config.swiglu_limit)
        for name, numbers in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(numbers).view(-1, 1), persistent=False)

    def forward(self, patches: Tensor, frame: Tensor, place: Tensor, dtype: torch.dtype) -> Tensor:
        """`patches` [R, L, values] uint8 of the pictures numbered `frame` [R, L], at row and column `place` [R, L, 2].

        Returns a row for every four patches, [R, L / 4, out] in `dtype`.
        """
        config = self.config
        values = patches.unflatten(-1, (config.channels, -1)).float() / 255.0
        values = ((values - self.get_buffer("mean")) / self.get_buffer("deviation")).flatten(2).to(dtype)
        embed = self.patch_embed.proj
        x = functional.linear(values, embed.weight.flatten(1).to(dtype), embed.bias.to(dtype))
        turn = self._rotation(place)
        together = frame.unsqueeze(2) == frame.unsqueeze(1)
        for block in self.blocks:
            x = block(x, turn, together)
        x = self.post_layernorm(x).unflatten(1, (-1, config.merge**2)).flatten(2)
        weight = self.downsample.weight.permute(0, 2, 3, 1).flatten(1)
        x = functional.linear(x, weight.to(dtype), self.downsample.bias.to(dtype))
        out: Tensor = self.merger(x)
        return out

    def _rotation(self, place: Tensor) -> tuple[Tensor, Tensor]:
        count = self.config.head_dim // 4
        steps = torch.arange(count, device=place.device, dtype=torch.float32) * 2 / (2 * count)
        angles = (place.float().unsqueeze(-1) * self.config.rope_theta**-steps).flatten(2)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()
