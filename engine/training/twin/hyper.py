# SPDX-License-Identifier: Apache-2.0
"""Hyper-connections: collapse the streams, run a sublayer, spread its result (as `kernels.reference.hyper`).

Streams are flat rows, [N, S, d] fp32.
"""

from __future__ import annotations

import torch
from sparkpair.model.config import TextConfig
from torch import Tensor
from torch.nn import functional

from training.twin.rows import Norm, fused


def hyper_weights(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, config: TextConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Collapse [N, S], spread [N, S] and mixing [N, S, S] weights of `streams`, in fp32."""
    count, eps = config.hc_mult, config.hc_eps
    flat = streams.flatten(-2).float()
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + config.rms_norm_eps)
    mixed = functional.linear(flat, fn)
    pre = torch.sigmoid(mixed[..., :count] * scale[0] + base[:count]) + eps
    post = 2.0 * torch.sigmoid(mixed[..., count : 2 * count] * scale[1] + base[count : 2 * count])
    logits = mixed[..., 2 * count :] * scale[2] + base[2 * count :]
    comb = torch.softmax(logits.unflatten(-1, (count, count)), dim=-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(config.hc_iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


@fused
def hyper_enter(
    streams: Tensor,
    hyper: tuple[Tensor, Tensor, Tensor],
    norm: Norm,
    config: TextConfig,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sublayer's input [N, d] in `dtype`, the normed sum over streams of pre_s * streams_s, and what `hyper_spread`
    needs. `hyper` are the sublayer's fn, base and scale.
    """
    pre, post, comb = hyper_weights(streams, *hyper, config)
    collapsed = (pre.unsqueeze(-1) * streams).sum(-2)
    return norm(collapsed, dtype), post, comb


@fused
def hyper_spread(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams: post_s * branch + sum over j of comb[j, s] * streams_j; `branch` [N, d]."""
    spread = post.unsqueeze(-1) * branch.float().unsqueeze(-2)
    # Products of 4 x 4 matrices one row at a time are slower than sums.
    for stream in range(streams.shape[-2]):
        spread = spread + comb[:, stream, :, None] * streams[:, stream, None, :]
    return spread
