# SPDX-License-Identifier: Apache-2.0
"""The MTP head: one more layer that guesses the token after next from the backbone's result and the next token.

Row i is made from the backbone's hidden row i (after the final norm) and the token at i + 1; its logits are for the
token at i + 2. The head keeps a cache of its own with one row per absorbed position. In a chain of drafts the head's
own output takes the place of the backbone's row, and the rows so made are forgotten afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.cache.extents import UNIT
from sparkpair.cache.pool import Place, RowPool
from sparkpair.cache.state import DsaState, SequenceState, Span, empty_dsa
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.model.dsa import DsaAttention
from sparkpair.model.glm5_next import PREFIX, Glm5NextRank
from sparkpair.model.moe import MoeMlp

Pick = Callable[[Tensor, list[int], int], Sequence[int | None]]


class MtpHead:
    """The layer behind the backbone's last, on one rank. Embedding and output head are the backbone's."""

    def __init__(self, backbone: Glm5NextRank, weights: RankWeights) -> None:
        config = backbone.config
        prefix = f"{PREFIX}.layers.{config.num_layers}"
        self.backbone = backbone
        self.eps = config.rms_norm_eps
        self.token_norm = weights.take(f"{prefix}.enorm.weight")
        self.hidden_norm = weights.take(f"{prefix}.hnorm.weight")
        self.join = weights.take_linear(f"{prefix}.eh_proj")
        self.attention_norm = weights.take(f"{prefix}.input_layernorm.weight")
        self.attention = DsaAttention(config, weights, f"{prefix}.self_attn")
        self.mlp_norm = weights.take(f"{prefix}.post_attention_layernorm.weight")
        self.mlp = MoeMlp(config, weights, f"{prefix}.mlp")
        self.final_norm = weights.take(f"{prefix}.shared_head.norm.weight")

    def new_state(self, pool: RowPool, place: Place) -> SequenceState:
        """The head's empty state of a new sequence: one DSA layer, the first behind the backbone's."""
        config = self.backbone.config
        return SequenceState([empty_dsa(config, config.num_layers, self.backbone.dtype, pool, place)])

    def lone_state(self) -> SequenceState:
        """The empty state of a sequence of at most UNIT tokens with a pool of its own."""
        return self.new_state(self.backbone.new_pool(UNIT, drafter_layers=1), Place(0, UNIT))

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """The embeddings of tokens of text, [n, d]."""
        return self.backbone.embedding[torch.tensor(tokens, dtype=torch.int64, device=self.backbone.device)]

    @torch.inference_mode()
    def forward(self, hidden: Tensor, after: Tensor, spans: list[Span]) -> Tensor:
        """Absorb rows: `hidden` [T, d] and the embeddings of the tokens after them, [T, d] -> its normed rows [T, d].

        Where a picture stands, `after` has its row, as the backbone does.
        Spans are of the head's own states and advance as the backbone's do: decode rows wait for a commit. A row's
        logits are `backbone.logits` of its normed row.
        """
        group = self.backbone.group
        embedded = kernels.rms_norm(after, self.token_norm, self.eps)
        joined = torch.cat([embedded, kernels.rms_norm(hidden, self.hidden_norm, self.eps)], dim=1)
        x = kernels.linear(joined, self.join)
        attended = self.attention.forward(kernels.rms_norm(x, self.attention_norm, self.eps), spans, 0)
        x = x + group.sum_partials(attended).to(x.dtype)
        x = x + group.sum_partials(self.mlp.forward(kernels.rms_norm(x, self.mlp_norm, self.eps))).to(x.dtype)
        for span in spans:
            span.advance()
        return kernels.rms_norm(x, self.final_norm, self.eps)

    def draft(self, normed: Tensor, states: list[SequenceState], counts: list[int], pick: Pick) -> list[list[int]]:
        """A chain of drafts for each of several sequences, which are left as they were.

        `normed` [B, d] is the head's row of each sequence's last absorbed position, `counts` are the most drafts of
        each, at least one. `pick(logits [n, vocab], alive, step)` chooses a token for each of the n sequences in
        `alive`, or None to end its chain; every rank must choose alike. Draft k of a sequence whose head has absorbed n
        rows guesses the token at position n + 1 + k.
        """
        before = [_Mark(state) for state in states]
        chains: list[list[int]] = [[] for _ in states]
        alive = list(range(len(states)))
        step = 0
        while alive:
            chosen = pick(self.backbone.logits(normed), alive, step)
            for sequence, token in zip(alive, chosen, strict=True):
                if token is not None:
                    chains[sequence].append(token)
            step += 1
            going = [row for row, sequence in enumerate(alive) if chosen[row] is not None and counts[sequence] > step]
            alive = [alive[row] for row in going]
            if alive:
                normed = self._follow(normed[going], [states[sequence] for sequence in alive], chains, alive)
        for mark in before:
            mark.rewind()
        return chains

    def _follow(self, normed: Tensor, states: list[SequenceState], chains: list[list[int]], alive: list[int]) -> Tensor:
        """One more row for each chain of `alive`, after its newest draft."""
        spans = [Span(slice(row, row + 1), state, decode=True) for row, state in enumerate(states)]
        rows = self.forward(normed, self.embed([chains[sequence][-1] for sequence in alive]), spans)
        for state in states:
            state.commit(1)
        return rows


class _Mark:
    """Where a head's state stands, to come back to."""

    def __init__(self, state: SequenceState) -> None:
        layer = state.layers[0]
        assert isinstance(layer, DsaState)
        self._state, self._layer = state, layer
        self._position = state.position
        self._lengths = layer.latents.length, layer.pooled.length
        self._open = layer.open_keys, layer.open_gates

    def rewind(self) -> None:
        """Forget everything absorbed since."""
        self._layer.latents.truncate(self._lengths[0])
        self._layer.pooled.truncate(self._lengths[1])
        self._layer.open_keys, self._layer.open_gates = self._open
        self._state.position = self._position
