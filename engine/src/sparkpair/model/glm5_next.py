# SPDX-License-Identifier: Apache-2.0
"""The text model of one rank: embeddings, layers with hyper-connections, final norm, vocabulary share of the head.

Each sublayer ends in a partial sum that the group adds in rank order, so every rank holds bit-equal streams.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.cache.extents import UNIT, units
from sparkpair.cache.forms import RowForm
from sparkpair.cache.pool import Place, RowPool
from sparkpair.cache.state import SequenceState, Span, new_state
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.comm.group import Group
from sparkpair.model.config import TextConfig
from sparkpair.model.dsa import DsaAttention
from sparkpair.model.hyper import HyperConnection
from sparkpair.model.kda import KdaAttention
from sparkpair.model.media_rows import MediaRows, place_media
from sparkpair.model.moe import DenseMlp, MoeMlp

PREFIX = "model.language_model"

# Told the index of a layer and the streams [T, S, d] after it; before all layers EMBEDDED and the streams that they
# begin with, in which the rows of pictures stand.
Watch = Callable[[int, Tensor], None]
EMBEDDED = -1


class DecoderLayer:
    """One layer: attention, then feed-forward, each inside its hyper-connection."""

    def __init__(self, config: TextConfig, weights: RankWeights, index: int) -> None:
        prefix = f"{PREFIX}.layers.{index}"
        self.index = index
        self.attention_hc = HyperConnection(config, weights, prefix, "attn", "input_layernorm")
        self.mlp_hc = HyperConnection(config, weights, prefix, "ffn", "post_attention_layernorm")
        attention = KdaAttention if config.attention[index] == "kda" else DsaAttention
        self.attention = attention(config, weights, f"{prefix}.self_attn")
        mlp = DenseMlp if config.feed_forward[index] == "dense" else MoeMlp
        self.mlp = mlp(config, weights, f"{prefix}.mlp")

    def forward(self, streams: Tensor, spans: list[Span], group: Group) -> Tensor:
        """`streams` [T, S, d] -> the streams after this layer."""

        def attend(x: Tensor) -> Tensor:
            return group.sum_partials(self.attention.forward(x, spans, self.index)).to(x.dtype)

        def feed(x: Tensor) -> Tensor:
            return group.sum_partials(self.mlp.forward(x)).to(x.dtype)

        return self.mlp_hc.apply(self.attention_hc.apply(streams, attend), feed)


class Glm5NextRank:
    """The backbone as one rank holds it. Not safe for use from two threads at once."""

    def __init__(self, config: TextConfig, weights: RankWeights, group: Group) -> None:
        self.config = config
        self.group = group
        self.dtype = weights.dtype
        self.device = weights.device
        self.embedding = weights.take(f"{PREFIX}.embed_tokens.weight")
        self.layers = [DecoderLayer(config, weights, index) for index in range(config.num_layers)]
        self.norm = weights.take(f"{PREFIX}.norm.weight")
        self.head = weights.take_linear("lm_head")
        self._kda_heads = next(
            (layer.attention.heads for layer in self.layers if isinstance(layer.attention, KdaAttention)), 0
        )

    def new_pool(self, tokens: int, form: RowForm = "fp32", *, drafter_layers: int = 0) -> RowPool:
        """The rows of `tokens` tokens of this model, and of layers that a drafter adds."""
        return RowPool(
            self.config, tokens, form=form, dtype=self.dtype, device=self.device, drafter_layers=drafter_layers
        )

    def new_state(self, pool: RowPool, place: Place) -> SequenceState:
        """The empty state of a new sequence, with its rows in `place`."""
        return new_state(self.config, kda_heads=self._kda_heads, dtype=self.dtype, pool=pool, place=place)

    def lone_state(self, tokens: int = UNIT) -> SequenceState:
        """The empty state of a sequence of at most `tokens` with a pool of its own."""
        room = units(tokens)
        return self.new_state(self.new_pool(room), Place(0, room))

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        spans: list[Span],
        logit_rows: list[int],
        media: MediaRows | None = None,
        watch: Watch | None = None,
    ) -> Tensor:
        """Run `tokens` [T] (int64) of the sequences in `spans` and return logits [len(logit_rows), vocab] in fp32.

        `logit_rows` are row numbers of this batch. Every rank returns the same logits. Prompt rows
        advance their sequence's position; decode rows wait for its `commit`. `watch` is told every layer's streams.
        """
        streams = self.absorb(tokens, spans, media, watch)
        return self.logits_of(streams, logit_rows)

    @torch.inference_mode()
    def absorb(
        self, tokens: Tensor, spans: list[Span], media: MediaRows | None = None, watch: Watch | None = None
    ) -> Tensor:
        """The streams after the last layer, [T, S, d], for every row of the batch; see `forward`."""
        streams = self.through(self.enter(tokens, media, watch), spans, range(len(self.layers)), watch)
        for span in spans:
            span.advance()
        return streams

    @torch.inference_mode()
    def enter(self, tokens: Tensor, media: MediaRows | None = None, watch: Watch | None = None) -> Tensor:
        """The streams [T, S, d] before the first layer."""
        x = self.embedding[tokens]
        if media is not None:
            place_media(x, media, self.group)
        streams = x.unsqueeze(1).expand(-1, self.config.hc_mult, -1)
        if watch is not None:
            watch(EMBEDDED, streams)
        return streams

    @torch.inference_mode()
    def through(self, streams: Tensor, spans: list[Span], layers: range, watch: Watch | None = None) -> Tensor:
        """The streams after some of the layers, in which the spans' states then hold the rows; no span advances."""
        for index in layers:
            streams = self.layers[index].forward(streams, spans, self.group)
            if watch is not None:
                watch(index, streams)
        return streams

    def logits_of(self, streams: Tensor, rows: list[int]) -> Tensor:
        """Logits [len(rows), vocab] in fp32 of some rows of the streams after the last layer."""
        if not rows:
            return self.no_logits()
        return self.logits(self.hidden(streams[torch.tensor(rows, device=streams.device)]))

    def no_logits(self) -> Tensor:
        """Logits of no row."""
        return torch.empty(0, self.config.vocab_size, dtype=torch.float32, device=self.device)

    @torch.inference_mode()
    def hidden(self, streams: Tensor) -> Tensor:
        """What the output head reads, [n, d]: the mean of the streams [n, S, d] after the final norm."""
        mean = streams.float().mean(1).to(streams.dtype)
        return kernels.rms_norm(mean, self.norm, self.config.rms_norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] in fp32 of normed rows [n, d], alike on every rank."""
        return self.group.join_columns(kernels.linear(hidden, self.head).float(), self.config.vocab_size)
