# SPDX-License-Identifier: Apache-2.0
"""Latent attention over tokens that an indexer selects: pooled index keys, scores, selection, attention."""

from __future__ import annotations

import torch
from torch import Tensor


def pool_keys(keys: Tensor, gates: Tensor, position_bias: Tensor) -> Tensor:
    """Pooled index keys of complete groups of tokens.

    `keys`, `gates` [P, K, D] hold P groups of K tokens, `position_bias` [K, D]. Per channel the K keys are averaged
    with weights softmax(gate + bias): logits in fp32, weights rounded to the key dtype. Returns [P, D].
    """
    weights = torch.softmax(gates.float() + position_bias.float(), dim=1).to(keys.dtype)
    return (weights * keys).sum(1)


def index_scores(queries: Tensor, head_weights: Tensor, pooled: Tensor) -> Tensor:
    """Score of every pool for every query, [T, P] fp32.

    `queries` [T, I, D], `head_weights` [T, I] (may be negative), `pooled` [P, D]:
    sum over heads of weight * relu(D^-0.5 * query . key).
    """
    rows, heads = head_weights.shape
    keys, weights = pooled.float(), head_weights.float()
    scores = torch.zeros(rows, pooled.shape[0], dtype=torch.float32, device=pooled.device)
    # As many heads at once as one query alone would have: the products of all heads would be the largest tensor of all.
    together = max(1, heads // rows)
    for first in range(0, heads, together):
        some = slice(first, first + together)
        dots = torch.einsum("tid,pd->tip", queries[:, some].float(), keys) * queries.shape[-1] ** -0.5
        scores += torch.einsum("ti,tip->tp", weights[:, some], dots.relu())
    return scores


def select_tokens(
    scores: Tensor, first_position: int, *, topk: int, kpool: int, select_tail: bool
) -> tuple[Tensor, Tensor]:
    """Tokens each query may attend to: the best pools that end at or before it, and the tail that fills no pool.

    `scores` [T, P] as of `index_scores`; query t stands at absolute position `first_position` + t. Ties go to the lower
    pool. Returns indices [T, topk + kpool] (absolute positions) and a mask of the same shape that says which count.
    """
    rows, pools = scores.shape
    device = scores.device
    positions = first_position + torch.arange(rows, device=device)
    complete = (positions + 1) // kpool
    masked = scores.masked_fill(torch.arange(pools, device=device) >= complete.unsqueeze(1), -torch.inf)
    kept = min(topk // kpool, pools)
    order = torch.sort(masked, dim=1, descending=True, stable=True)
    chosen, chosen_scores = order.indices[:, :kept], order.values[:, :kept]
    within = torch.arange(kpool, device=device)
    from_pools = (chosen.unsqueeze(-1) * kpool + within).flatten(1)
    from_pools_valid = (chosen_scores > -torch.inf).unsqueeze(-1).expand(-1, -1, kpool).flatten(1)
    tail = complete.unsqueeze(1) * kpool + within
    tail_valid = (tail <= positions.unsqueeze(1)) & select_tail
    valid = torch.cat([from_pools_valid, tail_valid], dim=1)
    return torch.cat([from_pools, tail], dim=1).masked_fill(~valid, 0), valid


def attend_latents(queries: Tensor, latents: Tensor, key_map: Tensor, value_map: Tensor, allowed: Tensor) -> Tensor:
    """Attention in the latent space (absorbed form): keys and values are linear maps of one shared row per token.

    `queries` [T, H, N], `key_map` [H, N, R], `value_map` [H, V, R]. `latents` are the rows that all queries share,
    [L, R], or those of each, [T, L, R]; `allowed` [T, L] says which count. Softmax in fp32, scale N^-0.5. Returns
    [T, H, V] in the queries' dtype.
    """
    absorbed = torch.einsum("thn,hnr->thr", queries, key_map)
    rows = "lr" if latents.dim() == 2 else "tlr"
    scores = torch.einsum(f"thr,{rows}->thl", absorbed, latents).float()
    scores = (scores * queries.shape[-1] ** -0.5).masked_fill(~allowed.unsqueeze(1), -torch.inf)
    weights = torch.softmax(scores, dim=-1).to(queries.dtype)
    mixed = torch.einsum(f"thl,{rows}->thr", weights, latents)
    return torch.einsum("thr,hvr->thv", mixed, value_map)
