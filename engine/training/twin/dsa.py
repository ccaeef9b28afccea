# SPDX-License-Identifier: Apache-2.0
"""DSA for training: attention over the tokens that the indexer selects, and a lesson for the indexer.

The choice itself has no gradient. The indexer learns by itself, from inputs that pass none on: its scores are to spread
over the pools of tokens as the attention that it serves spreads. With `everything` the layer attends to all that is
visible, so that an indexer that does not yet look at the right places can be shown them.
"""

from __future__ import annotations

import dataclasses

import torch
from sparkpair.model.config import TextConfig
from sparkpair.model.dsa import INDEX_NORM_EPS
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from training.twin.rows import CentredNorm, Linear, Norm, fused

# Queries whose scores are held at a time, where there are more.
QUERIES = 1024

NEVER = -1e30


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """Which rows of a batch belong together: `document`, `position` [B, T]; and whether every visible row counts."""

    document: Tensor
    position: Tensor
    everything: bool = False


class Indexer(nn.Module):
    """`self_attn.indexer`."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width, size = config.hidden_size, config.index_head_dim
        self.heads, self.size, self.kpool = config.index_heads, size, config.index_kpool
        self.wq_b = Linear(config.q_lora_rank, self.heads * size)
        self.wk = Linear(width, size)
        self.k_norm = CentredNorm(size, INDEX_NORM_EPS)
        self.weights_proj = Linear(width, self.heads)
        self.index_kpool_compress_ape = nn.Parameter(torch.zeros(config.index_kpool, size))
        self.index_kpool_compress_gate = nn.Parameter(torch.randn(size, width) * width**-0.5)

    def pools(self, x: Tensor) -> Tensor:
        """Pooled keys [N / kpool, D] of `x` [N, d]; documents begin on pool boundaries."""
        keys = self.k_norm(self.wk(x)).unflatten(0, (-1, self.kpool))
        gates = functional.linear(x, self.index_kpool_compress_gate.to(x.dtype)).unflatten(0, (-1, self.kpool))
        weights = torch.softmax(gates.float() + self.index_kpool_compress_ape, dim=1).to(x.dtype)
        return (weights * keys).sum(1)

    def queries(self, x: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Index queries [N, I, D] and head weights [N, I] in fp32, of `x` [N, d]."""
        asked = self.wq_b(latent).unflatten(-1, (self.heads, self.size))
        return asked, self.weights_proj(x).float() * self.heads**-0.5

    def scores(self, queries: Tensor, weights: Tensor, pools: Tensor) -> Tensor:
        """[B, n, P] fp32 of some queries [B, n, I, D] with their head weights [B, n, I]."""
        dots = torch.einsum("bnid,bpd->bnip", queries.float(), pools.float()) * self.size**-0.5
        return torch.einsum("bni,bnip->bnp", weights, dots.relu())


class Dsa(nn.Module):
    """`self_attn` of a DSA layer. After a forward pass `lesson` is the indexer's loss, and None while evaluating."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        width, heads = config.hidden_size, config.num_heads
        self.q_a_proj = Linear(width, config.q_lora_rank)
        self.q_a_layernorm = Norm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = Linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = Linear(width, config.kv_lora_rank)
        self.kv_a_layernorm = Norm(config.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = Linear(config.kv_lora_rank, heads * (config.qk_head_dim + config.v_head_dim))
        self.o_proj = Linear(heads * config.v_head_dim, width, gain=0.5)
        self.indexer = Indexer(config)
        self.lesson: Tensor | None = None

    def forward(self, x: Tensor, scope: Scope) -> Tensor:
        """`x` [B T, d] normed rows -> [B T, d]."""
        config = self.config
        batch, length = scope.document.shape
        queries, keys, values, index_queries, head_weights, pools = (
            rows.unflatten(0, (batch, -1)) for rows in self._project(x)
        )
        pieces, lessons = [], []
        for start in range(0, length, QUERIES):
            stop = min(start + QUERIES, length)
            some = slice(start, stop)
            arguments = (
                queries[:, some],
                keys[:, :stop],
                values[:, :stop],
                index_queries[:, some],
                head_weights[:, some],
                pools[:, : stop // config.index_kpool],
                scope.document[:, :stop],
                scope.everything,
            )
            if length > QUERIES and torch.is_grad_enabled():
                out, lesson = checkpoint(self._attend, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                out, lesson = self._attend(*arguments)
            pieces.append(out)
            lessons.append(lesson)
        self.lesson = None
        if self.training:
            taught = torch.stack([lesson for lesson in lessons if lesson is not None]).sum(0)
            self.lesson = taught[0] / taught[1].clamp(min=1.0)
        return self.o_proj(torch.cat(pieces, dim=1).flatten(2).flatten(0, 1))

    @fused
    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys [N, H, D] and values [N, H, V]; the indexer's queries, head weights and pools."""
        config = self.config
        latent = self.q_a_layernorm(self.q_a_proj(x))
        queries = self.q_b_proj(latent).unflatten(-1, (config.num_heads, -1))
        rows = self.kv_a_layernorm(self.kv_a_proj_with_mqa(x))
        expanded = self.kv_b_proj(rows).unflatten(-1, (config.num_heads, -1))
        keys, values = expanded.split([config.qk_head_dim, config.v_head_dim], dim=-1)
        # What the indexer learns from passes nothing on to the model.
        inputs = x.detach()
        index_queries, head_weights = self.indexer.queries(inputs, latent.detach())
        return queries, keys, values, index_queries, head_weights, self.indexer.pools(inputs)

    def _attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        index_queries: Tensor,
        head_weights: Tensor,
        pools: Tensor,
        document: Tensor,
        everything: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of the last n rows, [B, n, H, V], and sum and count of the indexer's loss."""
        kpool, count, length = self.config.index_kpool, queries.shape[1], keys.shape[1]
        place = torch.arange(length, device=keys.device)
        asking = place[length - count :].unsqueeze(1)
        visible = (document[:, length - count :].unsqueeze(2) == document.unsqueeze(1)) & (place <= asking)
        # A pool belongs to the document of its last token, and counts for a query that sees that token.
        complete = visible[:, :, kpool - 1 :: kpool]
        scores = self.indexer.scores(index_queries, head_weights, pools).masked_fill(~complete, NEVER)
        allowed = visible
        kept = self.config.index_topk // kpool
        if not everything and kept < complete.shape[2]:
            order = torch.sort(scores.detach(), dim=-1, descending=True, stable=True).indices[..., :kept]
            chosen = torch.zeros_like(complete).scatter(2, order, True) | ~complete
            chosen = functional.pad(chosen, (0, -(-length // kpool) - chosen.shape[2]), value=True)
            allowed = visible & chosen.repeat_interleave(kpool, dim=2)[:, :, :length]
        dots = torch.einsum("bnhd,bmhd->bhnm", queries, keys).float() * queries.shape[-1] ** -0.5
        weights = torch.softmax(dots.masked_fill(~allowed.unsqueeze(1), NEVER), dim=-1)
        out = torch.einsum("bhnm,bmhv->bnhv", weights.to(values.dtype), values)
        lesson = self._lesson(scores, complete, weights.detach()) if self.training else None
        return out, lesson

    def _lesson(self, scores: Tensor, complete: Tensor, weights: Tensor) -> Tensor:
        """[2]: the divergence of the scores' spread from the attention's, summed over queries, and their number."""
        kpool, pools = self.config.index_kpool, complete.shape[2]
        mass = weights.mean(1)[..., : pools * kpool].unflatten(-1, (pools, kpool)).sum(-1) * complete
        share = mass.sum(-1, keepdim=True)
        wanted = mass / share.clamp(min=1e-6)
        counts = ((complete.sum(-1) > 1) & (share.squeeze(-1) > 1e-3)).float()
        told = torch.log_softmax(scores, dim=-1)
        divergence = (wanted * (wanted.clamp(min=1e-9).log() - told.clamp(min=-100.0))).sum(-1)
        return torch.stack([(divergence * counts).sum(), counts.sum()])
