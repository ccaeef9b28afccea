# SPDX-License-Identifier: Apache-2.0
"""The vision tower: patches of one picture or one pair of video frames in, rows for the text model's prompt out.

Only rank 0 holds it. A clip is encoded one pair of frames after the other, so the work at a time is one picture's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.kernels.reference.vision import QUERIES
from sparkpair.model.vision_config import VisionConfig

PREFIX = "model.visual"

# Patches whose wide feed-forward rows are held at a time.
FEED_PATCHES = 4096

# The merger's LayerNorm has this epsilon, whatever the checkpoint's rms_norm_eps.
MERGER_NORM_EPS = 1e-5


class _Biased:
    """A linear map with a bias."""

    def __init__(self, weights: RankWeights, prefix: str) -> None:
        self.weight = weights.take(f"{prefix}.weight").flatten(1)
        self.bias = weights.take(f"{prefix}.bias")

    def __call__(self, x: Tensor) -> Tensor:
        return kernels.biased_linear(x, self.weight, self.bias)


class _Block:
    """Attention among all patches of one picture, then a clamped SwiGLU; both with pre-norm and residual."""

    def __init__(self, config: VisionConfig, weights: RankWeights, prefix: str) -> None:
        self.config = config
        self.norm1 = weights.take(f"{prefix}.norm1.weight")
        self.norm2 = weights.take(f"{prefix}.norm2.weight")
        self.qkv = _Biased(weights, f"{prefix}.attn.qkv")
        self.proj = _Biased(weights, f"{prefix}.attn.proj")
        self.q_norm = weights.take(f"{prefix}.attn.q_norm.weight")
        self.k_norm = weights.take(f"{prefix}.attn.k_norm.weight")
        self.gate = _Biased(weights, f"{prefix}.mlp.gate_proj")
        self.up = _Biased(weights, f"{prefix}.mlp.up_proj")
        self.down = _Biased(weights, f"{prefix}.mlp.down_proj")

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """`x` [n, width] -> [n, width]."""
        config = self.config
        normed = kernels.rms_norm(x, self.norm1, config.rms_norm_eps)
        qkv = self.qkv(normed).view(-1, 3, config.num_heads, config.head_dim)
        q = kernels.rotate(kernels.rms_norm(qkv[:, 0], self.q_norm, config.rms_norm_eps), *rotation)
        k = kernels.rotate(kernels.rms_norm(qkv[:, 1], self.k_norm, config.rms_norm_eps), *rotation)
        x = x + self.proj(kernels.attend_all(q, k, qkv[:, 2]).flatten(1))
        return torch.cat([part + self._feed(part) for part in torch.split(x, FEED_PATCHES)])

    def _feed(self, x: Tensor) -> Tensor:
        normed = kernels.rms_norm(x, self.norm2, self.config.rms_norm_eps)
        return self.down(kernels.swiglu(self.gate(normed), self.up(normed), self.config.swiglu_limit))


def workspace_bytes(config: VisionConfig, patches: int, element_bytes: int) -> int:
    """Bytes that encoding needs beside the weights, for pictures of at most `patches` patches."""
    rows = patches * 10 * config.hidden_size + min(patches, FEED_PATCHES) * 4 * config.intermediate_size
    scores = 3 * QUERIES * patches * config.num_heads
    return rows * element_bytes + scores * 4 + patches * config.patch_values * 8


class VisionTower:
    """The tower's weights and forward pass, in the dtype and on the device of `weights`."""

    def __init__(self, config: VisionConfig, weights: RankWeights) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.device = weights.device
        take = weights.take
        self.patch_embed = _Biased(weights, f"{PREFIX}.patch_embed.proj")
        self.blocks = [_Block(config, weights, f"{PREFIX}.blocks.{index}") for index in range(config.depth)]
        self.post_norm = take(f"{PREFIX}.post_layernorm.weight")
        # The patches of a token lie side by side, so its 2 x 2 convolution is one linear map over them.
        downsample = take(f"{PREFIX}.downsample.weight")
        self.downsample = downsample.permute(0, 2, 3, 1).flatten(1).contiguous()
        self.downsample_bias = take(f"{PREFIX}.downsample.bias")
        self.merge_proj = take(f"{PREFIX}.merger.proj.weight")
        self.merge_norm = take(f"{PREFIX}.merger.post_projection_norm.weight")
        self.merge_bias = take(f"{PREFIX}.merger.post_projection_norm.bias")
        self.merge_gate = take(f"{PREFIX}.merger.gate_proj.weight")
        self.merge_up = take(f"{PREFIX}.merger.up_proj.weight")
        self.merge_down = take(f"{PREFIX}.merger.down_proj.weight")

    @torch.inference_mode()
    def encode(self, patches: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """Rows for the prompt, [t gh gw / merge^2, out], of `patches` [t gh gw, values] on the grid (t, gh, gw).

        Patches are ordered as preprocessing leaves them: time, then merge blocks, then within a block.
        """
        times, height, width = grid
        placed = patches.to(device=self.device, dtype=self.dtype)
        rotation = self._rotation(height, width)
        frames = placed.view(times, height * width, -1)
        return torch.cat([self._encode_frame(frames[time], rotation) for time in range(times)])

    def _rotation(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of every patch of a frame, in the patches' order."""
        merge = self.config.merge
        place = torch.arange(height * width, device=self.device)
        down, across = place // merge**2 // (width // merge), place // merge**2 % (width // merge)
        rows = down * merge + place % merge**2 // merge
        columns = across * merge + place % merge
        return kernels.axial_rotation(rows, columns, self.config.head_dim, self.config.rope_theta)

    def _encode_frame(self, patches: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        config = self.config
        x = self.patch_embed(patches)
        for block in self.blocks:
            x = block.forward(x, rotation)
        x = kernels.rms_norm(x, self.post_norm, config.rms_norm_eps)
        x = kernels.biased_linear(
            x.view(-1, config.merge**2 * config.hidden_size), self.downsample, self.downsample_bias
        )
        x = kernels.biased_linear(x, self.merge_proj, None)
        x = kernels.gelu(kernels.layer_norm(x, self.merge_norm, self.merge_bias, MERGER_NORM_EPS))
        gate, up = (kernels.biased_linear(x, matrix, None) for matrix in (self.merge_gate, self.merge_up))
        return kernels.biased_linear(kernels.swiglu(gate, up, config.swiglu_limit), self.merge_down, None)
