# SPDX-License-Identifier: Apache-2.0
"""One DSA layer's attention on one rank: multi-head latent attention over the tokens its indexer selects.

The latent row and the indexer are computed alike by every rank; heads are divided. The result is a partial sum.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.cache.state import DsaState, Span
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.grid import GRID
from sparkpair.model.config import TextConfig

# The indexer's key norm is a LayerNorm with this epsilon, whatever the checkpoint's rms_norm_eps.
INDEX_NORM_EPS = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Rows of the batch that attend together, and the absolute position of the first."""

    rows: slice
    position: int


def attention_blocks(span: Span) -> list[Block]:
    """The rows of a span in the pieces that attend together: blocks of the grid, or single rows while decoding.

    A block sees exactly the rows up to its own end, so its shapes, and with them its bits, do not depend on how the
    prompt was cut into steps.
    """
    start, position = span.rows.start, span.state.position
    blocks = []
    while start < span.rows.stop:
        height = 1 if span.decode else GRID - position % GRID
        stop = min(start + height, span.rows.stop)
        blocks.append(Block(slice(start, stop), position))
        position += stop - start
        start = stop
    return blocks


class DsaAttention:
    """Weights and forward pass of one layer's `self_attn`."""

    def __init__(self, config: TextConfig, weights: RankWeights, prefix: str) -> None:
        self.config = config
        take = weights.take
        self.q_a = weights.take_linear(f"{prefix}.q_a_proj")
        self.q_a_norm = take(f"{prefix}.q_a_layernorm.weight")
        self.q_b = weights.take_linear(f"{prefix}.q_b_proj")
        self.kv_a = weights.take_linear(f"{prefix}.kv_a_proj_with_mqa")
        self.kv_a_norm = take(f"{prefix}.kv_a_layernorm.weight")
        self.heads = self.q_b.shape[0] // config.qk_head_dim
        kv_b = take(f"{prefix}.kv_b_proj.weight").view(self.heads, -1, config.kv_lora_rank)
        self.key_map = kv_b[:, : config.qk_head_dim].contiguous()
        self.value_map = kv_b[:, config.qk_head_dim :].contiguous()
        self.o = weights.take_linear(f"{prefix}.o_proj")
        self.index_q = take(f"{prefix}.indexer.wq_b.weight")
        self.index_k = take(f"{prefix}.indexer.wk.weight")
        self.index_k_norm = take(f"{prefix}.indexer.k_norm.weight")
        self.index_k_bias = take(f"{prefix}.indexer.k_norm.bias")
        self.index_weights = take(f"{prefix}.indexer.weights_proj.weight")
        self.pool_bias = take(f"{prefix}.indexer.index_kpool_compress_ape")
        self.pool_gate = take(f"{prefix}.indexer.index_kpool_compress_gate")

    def forward(self, x: Tensor, spans: list[Span], layer: int) -> Tensor:
        """`x` [T, d] normed rows -> this rank's partial sum [T, d] in fp32; extends each span's state."""
        config = self.config
        query_latent = kernels.rms_norm(kernels.linear(x, self.q_a), self.q_a_norm, config.rms_norm_eps)
        queries = kernels.linear(query_latent, self.q_b).view(-1, self.heads, config.qk_head_dim)
        latents = kernels.rms_norm(kernels.linear(x, self.kv_a), self.kv_a_norm, config.rms_norm_eps)
        keys = kernels.layer_norm(kernels.linear(x, self.index_k), self.index_k_norm, self.index_k_bias, INDEX_NORM_EPS)
        gates = kernels.linear(x, self.pool_gate)
        attended = x.new_empty(x.shape[0], self.heads, config.v_head_dim)
        for span in spans:
            state = span.state.layers[layer]
            assert isinstance(state, DsaState)
            rows = span.rows
            state.latents.append(latents[rows])
            self._extend_pools(state, keys[rows], gates[rows], span.decode)
            for block in attention_blocks(span):
                attended[block.rows] = self._attend(
                    state, block.position, queries[block.rows], query_latent[block.rows], x[block.rows]
                )
        return kernels.linear(attended.flatten(1), self.o).float()

    def _extend_pools(self, state: DsaState, keys: Tensor, gates: Tensor, decode: bool) -> None:
        """Add index keys; every group of `index_kpool` tokens, counted from the sequence's start, becomes one row."""
        kpool = self.config.index_kpool
        all_keys = torch.cat([state.open_keys, keys])
        all_gates = torch.cat([state.open_gates, gates])
        whole = all_keys.shape[0] // kpool * kpool
        if whole:
            shape = (-1, kpool, keys.shape[1])
            state.pooled.append(
                kernels.pool_keys(all_keys[:whole].view(shape), all_gates[:whole].view(shape), self.pool_bias)
            )
        if decode:
            state.window = (keys, gates, kpool)
        else:
            state.open_keys, state.open_gates = all_keys[whole:].clone(), all_gates[whole:].clone()

    def _attend(self, state: DsaState, position: int, queries: Tensor, query_latent: Tensor, x: Tensor) -> Tensor:
        """Attention of one block of new rows, [n, H, V]; `position` is the first row's."""
        config = self.config
        end = position + queries.shape[0]
        pools = end // config.index_kpool
        if pools <= config.index_topk // config.index_kpool and config.index_always_select_tail:
            # Every complete pool is selected and the tail always is: plain causal attention.
            where = torch.arange(end, device=x.device)
            allowed = where <= where[position:].unsqueeze(1)
            return kernels.attend_latents(queries, state.latents.first(end), self.key_map, self.value_map, allowed)
        index_queries = kernels.linear(query_latent, self.index_q).view(-1, config.index_heads, config.index_head_dim)
        head_weights = kernels.linear(x, self.index_weights).float() * config.index_heads**-0.5
        scores = kernels.index_scores(index_queries, head_weights, state.pooled.first(pools))
        indices, allowed = kernels.select_tokens(
            scores,
            position,
            topk=config.index_topk,
            kpool=config.index_kpool,
            select_tail=config.index_always_select_tail,
        )
        chosen = state.latents.at(indices)
        return kernels.attend_latents(queries, chosen, self.key_map, self.value_map, allowed)
