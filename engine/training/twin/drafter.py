# SPDX-License-Identifier: Apache-2.0
"""The DFlash2 drafter for training: many blocks of every row at once, each behind an anchor in the row's own text.

The same names and formulas as the engine's `model.dflash2`; a test holds the two against each other.
"""

from __future__ import annotations

import dataclasses

import torch
from sparkpair.kernels.reference.draft import position_rotation
from sparkpair.model.dflash2_config import DFlash2Config
from torch import Tensor, nn
from torch.nn import functional

from training.twin.dsa import NEVER
from training.twin.rows import Linear, Norm, rotate, swiglu

# A block's feed-forward has no clamp.
NO_LIMIT = float("inf")

Turn = tuple[Tensor, Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks behind `anchors` int64 [B, A], columns of their rows; and what they see of the row's text.

    `places` int64 [B, A, R] are the positions of a block's rows; `seen` bool [B, A, R, T] the context rows of each.
    """

    anchors: Tensor
    places: Tensor
    seen: Tensor


def blocks_at(anchors: Tensor, document: Tensor, position: Tensor, config: DFlash2Config) -> Blocks:
    """Blocks whose pending tokens are at `anchors` [B, A] of rows with `document`, `position` [B, T]."""
    pending = position.gather(1, anchors)
    places = pending.unsqueeze(2) + torch.arange(config.block_size, device=anchors.device)
    before = torch.arange(position.shape[1], device=anchors.device) < anchors.unsqueeze(2)
    before = before & (document.gather(1, anchors).unsqueeze(2) == document.unsqueeze(1))
    near = places.unsqueeze(3) - position[:, None, None, :] < config.window
    return Blocks(anchors, places, before.unsqueeze(2) & near)


class _Convolutions(nn.Module):
    """`attention_conv` or `mlp_conv`: one in front of a sublayer, one behind, kernels from the sublayer's input."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.groups = width // config.conv_group
        # A new one leaves every row as it is.
        kernel = torch.zeros(2, 2, width)
        kernel[:, 0] = 1.0
        self.base_kernel = nn.Parameter(kernel)
        self.kernel_projection = Linear(width, 4 * self.groups, gain=0.0)

    def dynamic(self, normed: Tensor) -> Tensor:
        """`normed` [..., R, d] -> what it adds to the kernels, [..., R, branch, tap, group]."""
        added: Tensor = self.kernel_projection(normed)
        return added.unflatten(-1, (2, 2, self.groups))

    def apply_branch(self, branch: int, x: Tensor, dynamic: Tensor) -> Tensor:
        """Each row with the row before it in its block, [..., R, d] -> [..., R, d]."""
        own = dynamic[..., branch, :, :].repeat_interleave(x.shape[-1] // self.groups, dim=-1)
        kernels = (self.base_kernel[branch] + own).to(x.dtype)
        before = functional.pad(x[..., :-1, :], (0, 0, 1, 0))
        return kernels[..., 0, :] * x + kernels[..., 1, :] * before


class _Attention(nn.Module):
    """`self_attn`: query heads in groups over fewer key heads; over context rows before a block, and the block."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        width, size = config.hidden_size, config.head_dim
        self.size = size
        self.q_proj = Linear(width, config.num_heads * size)
        self.k_proj = Linear(width, config.num_kv_heads * size)
        self.v_proj = Linear(width, config.num_kv_heads * size)
        self.o_proj = Linear(config.num_heads * size, width, gain=0.5)
        self.q_norm = Norm(size, config.rms_norm_eps)
        self.k_norm = Norm(size, config.rms_norm_eps)

    def _heads(self, projection: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = projection(x)
        return found.unflatten(-1, (-1, self.size))

    def forward(self, rows: Tensor, turn: Turn, context: Tensor, context_turn: Turn, seen: Tensor) -> Tensor:
        """`rows` [B, A, R, d] over `context` [B, T, d] where `seen` [B, A, R, T] -> [B, A, R, d]."""
        queries = rotate(self.q_norm(self._heads(self.q_proj, rows)), *turn)
        keys = rotate(self.k_norm(self._heads(self.k_proj, rows)), *turn)
        values = self._heads(self.v_proj, rows)
        far_keys = rotate(self.k_norm(self._heads(self.k_proj, context)), *context_turn)
        far_values = self._heads(self.v_proj, context)
        queries = queries.unflatten(-2, (keys.shape[-2], -1))  # [B, A, R, G, E, D]
        far = torch.einsum("barged,btgd->bgeart", queries, far_keys).float()
        far = far.masked_fill(~seen[:, None, None], NEVER)
        own = torch.einsum("barged,basgd->bgears", queries, keys).float()
        weights = torch.softmax(torch.cat([far, own], dim=-1) * self.size**-0.5, dim=-1).to(values.dtype)
        far, own = weights.split([context.shape[1], rows.shape[2]], dim=-1)
        out = torch.einsum("bgeart,btgd->barged", far, far_values) + torch.einsum("bgears,basgd->barged", own, values)
        attended: Tensor = self.o_proj(out.flatten(-3))
        return attended


class _FeedForward(nn.Module):
    """`mlp`."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, gain=0.5)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., d] -> [..., d]."""
        inner: Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x), NO_LIMIT))
        return inner


class _Layer(nn.Module):
    """One layer; streams are fp32, sublayers run in `dtype`."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.mlp = _FeedForward(config)
        self.attention_conv = _Convolutions(config)
        self.mlp_conv = _Convolutions(config)

    def forward(
        self, x: Tensor, turn: Turn, context: Tensor, context_turn: Turn, seen: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """`x` [B, A, R, d] fp32 -> [B, A, R, d] fp32."""
        normed = self.input_layernorm(x, dtype)
        dynamic = self.attention_conv.dynamic(normed)
        rows = self.attention_conv.apply_branch(0, normed, dynamic)
        attended = self.self_attn(rows, turn, context, context_turn, seen)
        x = x + self.attention_conv.apply_branch(1, attended, dynamic).float()
        normed = self.post_attention_layernorm(x, dtype)
        dynamic = self.mlp_conv.dynamic(normed)
        inner = self.mlp(self.mlp_conv.apply_branch(0, normed, dynamic))
        return x + self.mlp_conv.apply_branch(1, inner, dynamic).float()


class _Selector(nn.Module):
    """`candidate_selector`."""

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        rank, vocab = config.selector_rank, config.vocab_size
        self.hidden_projection = Linear(config.hidden_size, rank)
        self.predecessor_codebook = nn.Parameter(torch.randn(vocab, rank) * rank**-0.5)
        # A new selector leaves the order of the candidates as it is.
        self.successor_codebook = nn.Parameter(torch.zeros(vocab, rank))

    def forward(self, hidden: Tensor, previous: Tensor, candidates: Tensor) -> Tensor:
        """How well each of `candidates` [..., K] follows `previous` [...], by rows `hidden` [..., d]: fp32 [..., K]."""
        projected = self.hidden_projection(hidden).float()
        before = functional.embedding(previous, self.predecessor_codebook) * projected
        after = functional.embedding(candidates, self.successor_codebook)
        return (after * before.unsqueeze(-2)).sum(-1)


class Drafter(nn.Module):
    """The drafter of a configuration. Its embedding is the target's, its head too."""

    def __init__(self, config: DFlash2Config, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        width, eps = config.hidden_size, config.rms_norm_eps
        self.fc = Linear(len(config.taps) * width, width)
        self.hidden_norm = Norm(width, eps)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self.norm = Norm(width, eps)
        self.candidate_selector = _Selector(config)

    def forward(self, taps: Tensor, position: Tensor, pending: Tensor, blocks: Blocks, embedding: Tensor) -> Tensor:
        """Normed rows [B, A, R, d] of `blocks` behind the tokens `pending` [B, A].

        `taps` [B, T, taps d] and `position` [B, T] are the row's text, `embedding` [vocab, d] is the target's.
        """
        config = self.config
        context = self.hidden_norm(self.fc(taps.to(self.dtype)))
        first = functional.embedding(pending, embedding).unsqueeze(2)
        masks = embedding[config.mask_id].expand(*pending.shape, config.block_size - 1, -1)
        x = torch.cat([first, masks], dim=2).float()
        turn, context_turn = self._turn(blocks.places), self._turn(position)
        for layer in self.layers:
            x = layer(x, turn, context, context_turn, blocks.seen, self.dtype)
        normed: Tensor = self.norm(x, self.dtype)
        return normed

    def _turn(self, positions: Tensor) -> Turn:
        """Cosines and sines [..., head_dim] of `positions` [...]."""
        cosines, sines = position_rotation(positions.flatten(), self.config.head_dim, self.config.rope_theta)
        return cosines.unflatten(0, positions.shape), sines.unflatten(0, positions.shape)
