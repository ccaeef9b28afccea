# SPDX-License-Identifier: Apache-2.0
"""Hyper-connections: collapse the streams, run a sublayer, spread its result (as `kernels.reference.hyper`)."""

from __future__ import annotations

import torch
from sparkpair.model.config import TextConfig
from torch import Tensor
from torch.nn import functional


def hyper_weights(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, config: TextConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Collapse [..., S], spread [..., S] and mixing [..., S, S] weights of `streams` [..., S, d], in fp32."""
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


def hyper_collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """The sublayer's input: sum over streams of pre_s * streams_s, [..., d]."""
    return (pre.unsqueeze(-1) * streams.float()).sum(-2).to(streams.dtype)


def hyper_spread(streams: Tensor, branch: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams: post_s * branch + sum over j of comb[j, s] * streams_j, [..., S, d]; `branch` [..., d]."""
    mixed = comb.transpose(-1, -2) @ streams.float()
    return (post.unsqueeze(-1) * branch.float().unsqueeze(-2) + mixed).to(streams.dtype)
