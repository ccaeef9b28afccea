# SPDX-License-Identifier: Apache-2.0
"""KDA for training: all chunks of all documents at once, then one small product a chunk to hand the state on.

What concerns one chunk alone has its chunks in the first axis: [M, H, 64, D] for M chunks of all rows of a batch.

Documents begin on chunk boundaries. Within a chunk the decay between two tokens is split at the beginning of the later
token's block of 16 rows, so that with a bounded decay no factor leaves the range of fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from sparkpair.grid import GRID
from sparkpair.model.config import TextConfig
from torch import Tensor, nn
from torch.nn import functional

from training.twin.rows import Linear, Norm, fused, l2_normalise

BLOCK = 16

# exp of this is finite in fp32, also times a row of keys; a block's decay stays below it with the bound of -5.
FURTHEST = 80.0


class _UnitInverse(torch.autograd.Function):
    """The inverse of I + A for strictly lower triangular A [..., n, n], n a power of two."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        """Blocks of twice the size from the inverses of their halves: exact where powers of A would overflow."""
        size = lower.shape[-1]
        inverse = torch.eye(size, dtype=lower.dtype, device=lower.device).expand_as(lower).contiguous()
        reach = 1
        while reach < size:
            pairs = (*lower.shape[:-2], size // (2 * reach), 2, reach, size // (2 * reach), 2, reach)
            coupled = lower.reshape(pairs).diagonal(dim1=-6, dim2=-3)  # [..., 2, reach, 2, reach, pair]
            halves = inverse.view(pairs).diagonal(dim1=-6, dim2=-3)
            below = coupled[..., 1, :, 0, :, :].movedim(-1, -3)
            first = halves[..., 0, :, 0, :, :].movedim(-1, -3)
            second = halves[..., 1, :, 1, :, :].movedim(-1, -3)
            halves[..., 1, :, 0, :, :].copy_((-(second @ below @ first)).movedim(-3, -1))
            reach *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        turned = inverse.transpose(-1, -2)
        return -(turned @ grads[0] @ turned).tril(-1)


def unit_inverse(lower: Tensor) -> Tensor:
    """The inverse of I + `lower` [..., n, n], which is strictly lower triangular; n is a power of two."""
    inverse: Tensor = _UnitInverse.apply(lower)
    return inverse


def kda_chunks(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, keep: Tensor) -> Tensor:
    """What the recurrence gives, [B T, H, V] fp32; T is a multiple of the chunk of 64.

    `q` (scaled), `k`, `decay` [B T, H, D], `v` [B T, H, V], `beta` [B T, H], all fp32; `keep` [B, T / 64] is 0 for
    chunks that begin with an empty state and 1 for the others.
    """
    coupling, *within = _within(q, k, v, decay, beta)
    move, add, *rest = _onward(unit_inverse(coupling), *within)
    return _outputs(_states(move, add, keep), *rest)


def _split(x: Tensor) -> Tensor:
    return x.unflatten(0, (-1, GRID)).transpose(1, 2).contiguous()


@fused
def _within(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """How the tokens of a chunk act on later ones of it, and what `_onward` needs."""
    q, k, v, decay, beta = (_split(x) for x in (q, k, v, decay, beta.unsqueeze(-1)))
    total = decay.cumsum(-2)
    before = functional.pad(total[..., BLOCK - 1 : GRID - 1 : BLOCK, :], (0, 0, 1, 0))  # [M, H, blocks, D]
    within = (total.unflatten(-2, (-1, BLOCK)) - before.unsqueeze(-2)).exp()
    across = k.unsqueeze(-3) * (before.unsqueeze(-2) - total.unsqueeze(-3)).clamp(max=FURTHEST).exp()
    across = across.transpose(-1, -2)
    ones = torch.ones(GRID, GRID, dtype=q.dtype, device=q.device)
    coupling = ((k.unflatten(-2, (-1, BLOCK)) * within) @ across).flatten(-3, -2) * ones.tril(-1) * beta
    scores = ((q.unflatten(-2, (-1, BLOCK)) * within) @ across).flatten(-3, -2) * ones.tril()
    return coupling, q, k, v, beta, total, scores


@fused
def _onward(
    solved: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, total: Tensor, scores: Tensor
) -> tuple[Tensor, ...]:
    """What a chunk makes of the state before it: move @ state + add; and what `_outputs` needs."""
    reach = total.exp()
    from_state = solved @ (beta * k * reach)
    updates = solved @ (beta * v)
    last = total[..., -1:, :]
    onward = (k * (last - total).exp()).transpose(-1, -2)
    move = torch.diag_embed(last.squeeze(-2).exp()) - onward @ from_state  # [M, H, D, D]
    return move, onward @ updates, q * reach, scores, updates, from_state


@fused
def _outputs(states: Tensor, reached: Tensor, scores: Tensor, updates: Tensor, from_state: Tensor) -> Tensor:
    out = reached @ states + scores @ (updates - from_state @ states)
    return out.transpose(1, 2).flatten(0, 1)


def _states(move: Tensor, add: Tensor, keep: Tensor) -> Tensor:
    """The state before every chunk, [M, H, D, V]; `keep` [B, M / B]."""
    batch, chunks = keep.shape
    heads = move.shape[1]
    kept = functional.pad(keep[:, 1:], (0, 1)).view(batch, chunks, 1, 1, 1)
    moves = (move.unflatten(0, (batch, chunks)) * kept).transpose(0, 1).flatten(1, 2)
    adds = (add.unflatten(0, (batch, chunks)) * kept).transpose(0, 1).flatten(1, 2)
    state = torch.zeros_like(adds[0])
    states = []
    for chunk in range(chunks):
        states.append(state)
        if chunk + 1 < chunks:
            state = torch.baddbmm(adds[chunk], moves[chunk], state)
    return torch.stack(states, dim=1).unflatten(0, (batch, heads)).transpose(1, 2).flatten(0, 1)


class Kda(nn.Module):
    """`self_attn` of a KDA layer."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width, heads, head = config.hidden_size, config.linear_heads, config.linear_head_dim
        inner = heads * head
        self.heads, self.head = heads, head
        self.bound = config.gate_lower_bound
        self.taps = config.conv_kernel
        for name in "qkv":
            self.add_module(f"{name}_proj", Linear(width, inner))
            self.add_module(f"{name}_conv1d", _Convolution(inner, config.conv_kernel))
        for name in "fg":
            self.add_module(f"{name}_a_proj", Linear(width, head))
            self.add_module(f"{name}_b_proj", Linear(head, inner))
        self.b_proj = Linear(width, heads)
        self.A_log = nn.Parameter(torch.zeros(heads))
        # From a decay that forgets within a few tokens to one that remembers for hundreds.
        self.dt_bias = nn.Parameter(torch.linspace(-8.0, -2.0, inner)[torch.randperm(inner)])
        self.o_norm = Norm(head, config.rms_norm_eps)
        self.o_proj = Linear(inner, width, gain=0.5)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """`x` [B T, d] normed rows, `position` [B, T] in their documents -> [B T, d]."""
        keep = (position[:, ::GRID] != 0).float()
        return self._output(kda_chunks(*self._inputs(x, position.flatten()), keep), x)

    @fused
    def _inputs(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values, decay and beta as `kda_chunks` wants them."""
        shape = (x.shape[0], self.heads, self.head)
        q, k, v = (
            getattr(self, f"{name}_conv1d")(getattr(self, f"{name}_proj")(x), position).view(shape) for name in "qkv"
        )
        q = l2_normalise(q) * self.head**-0.5
        k, v = l2_normalise(k), v.float()
        forget = self.get_submodule("f_b_proj")(self.get_submodule("f_a_proj")(x)).view(shape).float()
        rate = self.A_log.exp().unsqueeze(-1)
        biased = forget + self.dt_bias.view(self.heads, self.head)
        slow = -functional.softplus(biased) * rate
        decay = slow if self.bound is None else self.bound * torch.sigmoid(rate * biased)
        return q, k, v, decay, torch.sigmoid(self.b_proj(x)).float()

    @fused
    def _output(self, out: Tensor, x: Tensor) -> Tensor:
        """The normed and gated heads `out` [N, H, V] of the rows `x`, projected."""
        gate = self.get_submodule("g_b_proj")(self.get_submodule("g_a_proj")(x)).view(out.shape)
        scaled = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + self.o_norm.eps)
        normed = scaled * self.o_norm.weight * torch.sigmoid(gate.float())
        projected: Tensor = self.o_proj(normed.flatten(1).to(x.dtype))
        return projected


class _Convolution(nn.Module):
    """A depthwise causal convolution with silu, which does not reach over the beginning of a document."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        first = torch.randn(channels, 1, taps) * 0.2
        first[:, :, -1] += 1.0
        self.weight = nn.Parameter(first)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """`x` [N, C] at `position` [N] -> [N, C] in x's dtype."""
        taps = self.weight.shape[-1]
        wide = x.float() * self.weight[:, 0, taps - 1]
        for back in range(1, taps):
            there = functional.pad(x, (0, 0, back, 0))[: x.shape[0]].float()
            seen = (position >= back).unsqueeze(-1)
            wide = wide + there * seen * self.weight[:, 0, taps - 1 - back]
        return functional.silu(wide).to(x.dtype)
