# SPDX-License-Identifier: Apache-2.0
"""Drafts of the checkpoint's own MTP head: greedy chains, one token after the other.

The head's row of a position is made from the backbone's row there and the token after it. So the newest row waits
until that token is known: within a prompt that is the next prompt token, behind a window the pending one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkpair.cache.pool import Place, RowPool
from sparkpair.cache.state import KeptState, SequenceState, Span
from sparkpair.drafting.drafter import Ask, Passed
from sparkpair.drafting.orders import DraftOrder
from sparkpair.model.glm5_next import EMBEDDED
from sparkpair.model.mtp import MtpHead


@dataclasses.dataclass(slots=True)
class MtpState:
    """The head's rows, and what waits to become one: `hidden` [m, d] of the newest positions.

    `tokens` stand after all of them but the last.
    """

    head: SequenceState
    hidden: Tensor
    tokens: list[int]

    def keep(self, token: int) -> KeptMtp:
        """What `resume` needs; hidden rows are replaced and never written in place, so they are shared."""
        return KeptMtp(self.head.keep(token), self.hidden, tuple(self.tokens))


@dataclasses.dataclass(frozen=True, slots=True)
class KeptMtp:
    """The head's part of a kept state."""

    head: KeptState
    hidden: Tensor
    tokens: tuple[int, ...]

    def resume(self, place: Place) -> MtpState:
        """The state as it was, with the head's rows in `place`."""
        return MtpState(self.head.resume(place), self.hidden, list(self.tokens))


class MtpDrafter:
    """Implements drafter.RankDrafter."""

    pool_layers = 1

    def __init__(self, head: MtpHead) -> None:
        self._head = head
        self._last_layer = head.backbone.config.num_layers - 1
        self._embedded: Tensor | None = None
        self._hidden: Tensor | None = None

    @property
    def watched(self) -> frozenset[int]:
        """See RankDrafter."""
        return frozenset({EMBEDDED, self._last_layer})

    def new_state(self, pool: RowPool, place: Place) -> MtpState:
        """See RankDrafter."""
        backbone = self._head.backbone
        nothing = torch.empty(0, backbone.config.hidden_size, dtype=backbone.dtype, device=backbone.device)
        return MtpState(self._head.new_state(pool, place), nothing, [])

    def watch(self, layer: int, streams: Tensor) -> None:
        """See RankDrafter."""
        if layer == EMBEDDED:
            self._embedded = streams[:, 0]
        if layer == self._last_layer:
            self._hidden = self._head.backbone.hidden(streams)

    def passed(self, parts: Sequence[Passed]) -> None:
        """See RankDrafter."""
        hidden, self._hidden = self._hidden, None
        embedded, self._embedded = self._embedded, None
        assert hidden is not None
        assert embedded is not None
        ready: list[tuple[MtpState, Tensor, Tensor]] = []
        for part in parts:
            own = _state(part.state)
            rows = hidden[part.rows]
            if part.decode:
                own.hidden, own.tokens = rows, part.tokens[1:]
                continue
            # The row that waited gets its token with the first of these; the last of these waits in turn.
            after = embedded[part.rows] if own.hidden.shape[0] else embedded[part.rows][1:]
            ready.append((own, torch.cat([own.hidden, rows[:-1]]), after))
            own.hidden = rows[-1:].clone()
        self._absorb(ready)

    def _absorb(self, ready: list[tuple[MtpState, Tensor, Tensor]]) -> Tensor:
        """Absorb rows [m, d] with the embeddings of what follows them into each state; its rows, all together."""
        spans, start = [], 0
        for own, hidden, _ in ready:
            spans.append(Span(slice(start, start + hidden.shape[0]), own.head, decode=False))
            start += hidden.shape[0]
        if start == 0:
            return torch.empty(0)
        after = torch.cat([embedded for _, _, embedded in ready])
        return self._head.forward(torch.cat([hidden for _, hidden, _ in ready]), after, spans)

    @torch.inference_mode()
    def draft(self, asks: Sequence[Ask]) -> list[list[int]]:
        """See RankDrafter."""
        ready = []
        for ask in asks:
            own = _state(ask.state)
            hidden = own.hidden[: ask.kept] if ask.kept else own.hidden
            ready.append((own, hidden, self._head.embed([*own.tokens[: hidden.shape[0] - 1], ask.pending])))
            own.hidden, own.tokens = hidden[:0], []
        normed = self._absorb(ready)
        ends = torch.tensor([hidden.shape[0] for _, hidden, _ in ready]).cumsum(0) - 1
        asked = [index for index, ask in enumerate(asks) if ask.order.count]
        chains: list[list[int]] = [[] for _ in asks]
        if asked:
            orders = [asks[index].order for index in asked]
            rows = normed[ends[asked].to(normed.device)]
            heads = [ready[index][0].head for index in asked]
            found = self._head.draft(rows, heads, [order.count for order in orders], _Greedy(orders))
            for index, chain in zip(asked, found, strict=True):
                chains[index] = chain
        return chains


class _Greedy:
    """The likeliest token of each row; ends a chain whose probability has become too small."""

    def __init__(self, orders: list[DraftOrder]) -> None:
        self._orders = orders
        self._likely = [1.0] * len(orders)

    def __call__(self, logits: Tensor, alive: list[int], step: int) -> list[int | None]:
        """A token, or None for the end, for each chain of `alive`; `logits` [len(alive), vocab]."""
        best: list[int] = logits.argmax(1).tolist()
        shares: list[float] = torch.softmax(logits.double(), 1).amax(1).tolist()
        chosen: list[int | None] = []
        for chain, token, share in zip(alive, best, shares, strict=True):
            self._likely[chain] *= share
            enough = step == 0 or self._likely[chain] >= self._orders[chain].least
            chosen.append(token if enough else None)
        return chosen


def _state(state: SequenceState) -> MtpState:
    assert isinstance(state.draft, MtpState)
    return state.draft
