# SPDX-License-Identifier: Apache-2.0
"""Manifold-constrained hyper-connections: how a sublayer reads from and writes to the residual streams.

S is the number of streams. Weights are computed in fp32 from the streams themselves and differ for every token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkpair.kernels.reference.tiles import row_mean, row_sum, sigmoid, tiled_linear


def hyper_weights(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, norm_eps: float, hc_eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Collapse, spread and mixing weights of one sublayer.

    `streams` [T, S, d]; `fn` [2S + S*S, S*d]; `base` [2S + S*S]; `scale` [3] in the order pre, post, comb.
    Returns pre [T, S], post [T, S] and comb [T, S, S] in fp32. The mixing matrix is brought near doubly stochastic by
    `iterations` column passes with a row pass between every two, so it ends on columns.
    """
    count = streams.shape[1]
    flat = streams.flatten(1).float()
    flat = flat * torch.rsqrt(row_mean(flat.square()) + norm_eps)
    mixed = tiled_linear(flat, fn.float())
    base, scale = base.float(), scale.float()
    pre = sigmoid(mixed[:, :count] * scale[0] + base[:count]) + hc_eps
    post = 2.0 * sigmoid(mixed[:, count : 2 * count] * scale[1] + base[count : 2 * count])
    logits = mixed[:, 2 * count :] * scale[2] + base[2 * count :]
    comb = torch.softmax(logits.view(-1, count, count), dim=-1) + hc_eps
    comb = comb / (row_sum(comb, -2) + hc_eps)
    for _ in range(iterations - 1):
        comb = comb / (row_sum(comb) + hc_eps)
        comb = comb / (row_sum(comb, -2) + hc_eps)
    return pre, post, comb


def hyper_collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """The sublayer's input: sum over streams of pre_s * streams_s, [T, d] in the streams' dtype."""
    return row_sum(pre.unsqueeze(-1) * streams.float(), 1).squeeze(1).to(streams.dtype)


def hyper_spread(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams: post_s * branch + sum over j of comb[j, s] * streams_j, [T, S, d] in the streams' dtype.

    `branch` [T, d] is the sublayer's output. The transpose of comb acts on the old streams.
    """
    mixed = comb.transpose(1, 2) @ streams.float()
    return (post.unsqueeze(-1) * branch.float().unsqueeze(1) + mixed).to(streams.dtype)
