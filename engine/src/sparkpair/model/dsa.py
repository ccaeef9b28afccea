# SPDX-License-Identifier: Apache-2.0
"""One DSA layer's attention on one rank: multi-head latent attention over the tokens its indexer selects.

The latent row and the indexer are computed alike by every rank; heads are divided. The result is a partial sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.cache.state import DsaState, Span
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.model.config import TextConfig

# The indexer's key norm is a LayerNorm with this epsilon, whatever the checkpoint's rms_norm_eps.
INDEX_NORM_EPS = 1e-6

# Query rows that attend at once when a selection is gathered; bounds the gathered rows' memory.
QUERY_BLOCK = 64


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
            self._extend_pools(state, keys[rows], gates[rows])
            attended[rows] = self._attend(state, span.state.position, queries[rows], query_latent[rows], x[rows])
        return kernels.linear(attended.flatten(1), self.o).float()

    def _extend_pools(self, state: DsaState, keys: Tensor, gates: Tensor) -> None:
        """Add index keys; every group of `index_kpool` tokens, counted from the sequence's start, becomes one row."""
        kpool = self.config.index_kpool
        keys = torch.cat([state.open_keys, keys])
        gates = torch.cat([state.open_gates, gates])
        whole = keys.shape[0] // kpool * kpool
        if whole:
            width = keys.shape[1]
            state.pooled.append(
                kernels.pool_keys(
                    keys[:whole].view(-1, kpool, width), gates[:whole].view(-1, kpool, width), self.pool_bias
                )
            )
        state.open_keys, state.open_gates = keys[whole:].clone(), gates[whole:].clone()

    def _attend(self, state: DsaState, position: int, queries: Tensor, query_latent: Tensor, x: Tensor) -> Tensor:
        """Attention of one sequence's new rows, [n, H, V]; `position` is the first row's."""
        config = self.config
        latents = state.latents.rows
        if state.pooled.length <= config.index_topk // config.index_kpool and config.index_always_select_tail:
            # Every complete pool is selected and the tail always is: plain causal attention.
            where = torch.arange(latents.shape[0], device=x.device)
            positions = position + torch.arange(queries.shape[0], device=x.device)
            allowed = where <= positions.unsqueeze(1)
            return kernels.attend_latents(queries, latents, self.key_map, self.value_map, allowed, None)
        index_queries = kernels.linear(query_latent, self.index_q).view(-1, config.index_heads, config.index_head_dim)
        head_weights = kernels.linear(x, self.index_weights).float() * config.index_heads**-0.5
        blocks = []
        for start in range(0, queries.shape[0], QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            scores = kernels.index_scores(index_queries[block], head_weights[block], state.pooled.rows)
            indices, allowed = kernels.select_tokens(
                scores,
                position + start,
                topk=config.index_topk,
                kpool=config.index_kpool,
                select_tail=config.index_always_select_tail,
            )
            blocks.append(
                kernels.attend_latents(queries[block], latents, self.key_map, self.value_map, allowed, indices)
            )
        return torch.cat(blocks)
