# SPDX-License-Identifier: Apache-2.0
"""The DFlash2 block drafter on one rank: a small model that guesses a whole block of tokens in one pass.

Its context are keys and values made from the target's own streams, one row for every token that the target has
absorbed. A block is the pending token and masks after it; every row of it sees the context and the whole block.
Embedding and output head are the target's. Heads and widths are divided between ranks as the target's are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.model.dflash2_config import DFlash2Config
from sparkpair.model.glm5_next import Glm5NextRank

# A block's feed-forward has no clamp.
NO_LIMIT = float("inf")


class DrafterWeights:
    """Reads a rank's part of the drafter's tensors, in the target's dtype and on its device."""

    def __init__(self, checkpoint: Checkpoint, config: DFlash2Config, target: Glm5NextRank) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._target = target
        self.bytes_held = 0

    def take(self, name: str) -> Tensor:
        """This rank's part of a tensor."""
        group = self._target.group
        parts = self._config.part(name, group.world, group.rank)
        tensor = self._checkpoint.read(name, parts).to(self._target.device).to(self._target.dtype, copy=True)
        self.bytes_held += tensor.nbytes
        return tensor.contiguous()


class _Sublayer:
    """The convolutions around one sublayer of a block: one in front of it, one behind, kernels from its input."""

    def __init__(self, weights: DrafterWeights, prefix: str, groups: int) -> None:
        self._base = weights.take(f"{prefix}.base_kernel")
        self._projection = weights.take(f"{prefix}.kernel_projection.weight")
        self._groups = groups

    def dynamic(self, normed: Tensor) -> Tensor:
        """`normed` [B, R, d] -> what it adds to the kernels, [branch, B, R, tap, group]."""
        added = kernels.linear(normed.flatten(0, 1), self._projection)
        return added.view(*normed.shape[:2], 2, 2, self._groups).permute(2, 0, 1, 3, 4)

    def apply(self, branch: int, x: Tensor, dynamic: Tensor) -> Tensor:
        """The convolution of `branch`, [B, R, d] -> [B, R, d]."""
        return kernels.dynamic_convolution(x, self._base[branch], dynamic[branch])


class _Layer:
    """Weights of one drafter layer."""

    def __init__(self, config: DFlash2Config, weights: DrafterWeights, index: int) -> None:
        prefix = f"layers.{index}"
        groups = config.hidden_size // config.conv_group
        take = weights.take
        self.attention_norm = take(f"{prefix}.input_layernorm.weight")
        self.mlp_norm = take(f"{prefix}.post_attention_layernorm.weight")
        self.q, self.k, self.v, self.o = (take(f"{prefix}.self_attn.{name}_proj.weight") for name in "qkvo")
        self.q_norm, self.k_norm = (take(f"{prefix}.self_attn.{name}_norm.weight") for name in "qk")
        self.gate, self.up, self.down = (take(f"{prefix}.mlp.{name}_proj.weight") for name in ("gate", "up", "down"))
        self.attention_conv = _Sublayer(weights, f"{prefix}.attention_conv", groups)
        self.mlp_conv = _Sublayer(weights, f"{prefix}.mlp_conv", groups)


class DFlash2Rank:
    """The drafter beside the target it drafts for."""

    def __init__(self, config: DFlash2Config, weights: DrafterWeights, target: Glm5NextRank) -> None:
        self.config = config
        self.target = target
        self.fc = weights.take("fc.weight")
        self.context_norm = weights.take("hidden_norm.weight")
        self.layers = [_Layer(config, weights, index) for index in range(config.num_layers)]
        self.norm = weights.take("norm.weight")
        self.projection = weights.take("candidate_selector.hidden_projection.weight")
        self.predecessors = weights.take("candidate_selector.predecessor_codebook")
        self.successors = weights.take("candidate_selector.successor_codebook")
        self.context_width = sum(layer.k.shape[0] + layer.v.shape[0] for layer in self.layers)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return kernels.rms_norm(x, weight, self.config.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.config.head_dim)

    @torch.inference_mode()
    def context(self, taps: Tensor, positions: Tensor) -> Tensor:
        """Context rows of tokens at `positions` [n]: `taps` [n, taps * d] -> this rank's keys and values, [n, width].

        A tap is the mean of a target layer's output streams; a row holds key and value heads layer by layer.
        """
        context = self._norm(kernels.linear(taps, self.fc), self.context_norm)
        turn = kernels.position_rotation(positions, self.config.head_dim, self.config.rope_theta)
        parts = []
        for layer in self.layers:
            keys = kernels.rotate(self._norm(self._heads(kernels.linear(context, layer.k)), layer.k_norm), *turn)
            parts += [keys.flatten(1), kernels.linear(context, layer.v)]
        return torch.cat(parts, dim=1)

    @torch.inference_mode()
    def block(self, pending: Sequence[int], positions: Sequence[int], contexts: Sequence[Tensor]) -> Tensor:
        """One pass over a block of each of B sequences: the normed rows [B, block_size, d].

        `pending` are the tokens at `positions`, `contexts` [m, width] the context rows of the tokens right before them.
        Row r of a block guesses the token r places after the pending one.
        """
        config, device = self.config, self.target.device
        size = config.block_size
        tokens = torch.full((len(pending), size), config.mask_id, dtype=torch.int64, device=device)
        tokens[:, 0] = torch.tensor(pending, device=device)
        places = torch.tensor(positions, device=device).unsqueeze(1) + torch.arange(size, device=device)
        turn = kernels.position_rotation(places.flatten(), config.head_dim, config.rope_theta)
        seen = [self._visible(position, rows.shape[0]) for position, rows in zip(positions, contexts, strict=True)]
        x = self.target.embedding[tokens]
        start = 0
        for layer in self.layers:
            width = layer.k.shape[0]
            pairs = [(rows[:, start : start + width], rows[:, start + width : start + 2 * width]) for rows in contexts]
            x = self._attend(layer, x, turn, pairs, seen)
            x = self._feed(layer, x)
            start += 2 * width
        return self._norm(x, self.norm)

    def _visible(self, position: int, count: int) -> Tensor:
        """Which of `count` context rows and of the block each row of a block at `position` sees, [R, count + R]."""
        device, size = self.target.device, self.config.block_size
        where = torch.arange(position - count, position + size, device=device)
        rows = torch.arange(position, position + size, device=device).unsqueeze(1)
        return (rows - where < self.config.window) | (where >= position)

    def _attend(
        self,
        layer: _Layer,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        pairs: list[tuple[Tensor, Tensor]],
        seen: list[Tensor],
    ) -> Tensor:
        normed = self._norm(x, layer.attention_norm)
        dynamic = layer.attention_conv.dynamic(normed)
        rows = layer.attention_conv.apply(0, normed, dynamic).flatten(0, 1)
        queries = kernels.rotate(self._norm(self._heads(kernels.linear(rows, layer.q)), layer.q_norm), *turn)
        keys = kernels.rotate(self._norm(self._heads(kernels.linear(rows, layer.k)), layer.k_norm), *turn)
        values = self._heads(kernels.linear(rows, layer.v))
        size = self.config.block_size
        attended = []
        for index, (context_keys, context_values) in enumerate(pairs):
            own = slice(index * size, (index + 1) * size)
            attended.append(
                kernels.attend_groups(
                    queries[own],
                    torch.cat([self._heads(context_keys), keys[own]]),
                    torch.cat([self._heads(context_values), values[own]]),
                    seen[index],
                )
            )
        partial = kernels.linear(torch.cat(attended).flatten(1), layer.o).float()
        whole = self.target.group.sum_partials(partial).to(x.dtype).view_as(x)
        return x + layer.attention_conv.apply(1, whole, dynamic)

    def _feed(self, layer: _Layer, x: Tensor) -> Tensor:
        normed = self._norm(x, layer.mlp_norm)
        dynamic = layer.mlp_conv.dynamic(normed)
        rows = layer.mlp_conv.apply(0, normed, dynamic).flatten(0, 1)
        inner = kernels.swiglu(kernels.linear(rows, layer.gate), kernels.linear(rows, layer.up), NO_LIMIT)
        partial = kernels.linear(inner, layer.down).float()
        whole = self.target.group.sum_partials(partial).to(x.dtype).view_as(x)
        return x + layer.mlp_conv.apply(1, whole, dynamic)
