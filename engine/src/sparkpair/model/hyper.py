# SPDX-License-Identifier: Apache-2.0
"""The hyper-connection around one sublayer: collapse the streams, run the sublayer, spread its result."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from sparkpair import kernels
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.model.config import TextConfig


class HyperConnection:
    """Weights `hc_attn_*` or `hc_ffn_*` of one layer and the norm in front of its sublayer."""

    def __init__(self, config: TextConfig, weights: RankWeights, layer: str, kind: str, norm: str) -> None:
        self.config = config
        self.fn = weights.take(f"{layer}.hc_{kind}_fn")
        self.base = weights.take(f"{layer}.hc_{kind}_base")
        self.scale = weights.take(f"{layer}.hc_{kind}_scale")
        self.norm = weights.take(f"{layer}.{norm}.weight")

    def apply(self, streams: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """`streams` [T, S, d] -> the streams after the sublayer; `sublayer` maps [T, d] to the whole sum [T, d]."""
        config = self.config
        pre, post, comb = kernels.hyper_weights(
            streams,
            self.fn,
            self.base,
            self.scale,
            norm_eps=config.rms_norm_eps,
            hc_eps=config.hc_eps,
            iterations=config.hc_iterations,
        )
        collapsed = kernels.hyper_collapse(streams, pre)
        branch = sublayer(kernels.rms_norm(collapsed, self.norm, config.rms_norm_eps))
        return kernels.hyper_spread(streams, branch, post, comb)
