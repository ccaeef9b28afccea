# SPDX-License-Identifier: Apache-2.0
"""Drafts of a DFlash2 block drafter: one pass guesses a block, a selector makes one chain of its rows.

The rows of a block do not see each other's choices, so each gives candidates, and the selector walks them from the
pending token on: a candidate's score is its logit and how well it follows the token before it. Where the request
samples, the walk adds the noise that will decide the draw, so that the guess leans the way the draw will.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy
import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.cache.pool import Place, RowPool
from sparkpair.cache.state import SequenceState
from sparkpair.cache.tail import Tail
from sparkpair.drafting.drafter import Ask, Passed
from sparkpair.drafting.orders import DraftOrder
from sparkpair.model.dflash2 import DFlash2Rank
from sparkpair.sampling import Floats, Ids, keyed_noise


@dataclasses.dataclass(slots=True)
class DFlash2State:
    """Context rows of the newest of `position` tokens, and those of a window that wait to be kept.

    A block sees the tokens less than a window before it, so that many rows stay.
    """

    rows: Tail
    position: int = 0
    waiting: Tensor | None = None

    def append(self, rows: Tensor) -> None:
        """Add the rows of the next tokens."""
        self.rows.append(rows)
        self.position += rows.shape[0]

    def keep(self, token: int) -> KeptDFlash2:
        """What `resume` needs: a copy of all rows, because none is in the pool."""
        return KeptDFlash2(self.rows.rows.clone(), self.rows.fresh, self.position)


@dataclasses.dataclass(frozen=True, slots=True)
class KeptDFlash2:
    """The drafter's part of a kept state."""

    rows: Tensor
    fresh: Callable[[], Tail]
    position: int

    def resume(self, place: Place) -> DFlash2State:
        """The state as it was."""
        tail = self.fresh()
        tail.append(self.rows)
        return DFlash2State(tail, self.position)


class DFlash2Drafter:
    """Implements drafter.RankDrafter."""

    pool_layers = 0

    def __init__(self, model: DFlash2Rank) -> None:
        self._model = model
        self._taps: list[Tensor] = []

    @property
    def watched(self) -> frozenset[int]:
        """See RankDrafter."""
        return frozenset(self._model.config.taps)

    def new_state(self, pool: RowPool, place: Place) -> DFlash2State:
        """See RankDrafter."""
        return self.empty_state()

    def empty_state(self) -> DFlash2State:
        """The empty state of a new sequence; it has nothing in the pool."""
        model, target = self._model, self._model.target
        return DFlash2State(Tail(model.config.window - 1, model.context_width, target.dtype, target.device))

    def watch(self, layer: int, streams: Tensor) -> None:
        """See RankDrafter."""
        if layer in self._model.config.taps:
            self._taps.append(streams.float().mean(1).to(streams.dtype))

    def passed(self, parts: Sequence[Passed]) -> None:
        """See RankDrafter."""
        taps, self._taps = torch.cat(self._taps, dim=1), []
        for part in parts:
            own = _state(part.state)
            count = part.rows.stop - part.rows.start
            positions = torch.arange(own.position, own.position + count, device=taps.device)
            rows = self._model.context(taps[part.rows], positions)
            if part.decode:
                own.waiting = rows
            else:
                own.append(rows)

    @torch.inference_mode()
    def draft(self, asks: Sequence[Ask]) -> list[list[int]]:
        """See RankDrafter."""
        for ask in asks:
            own = _state(ask.state)
            if own.waiting is not None:
                own.append(own.waiting[: ask.kept])
                own.waiting = None
        chains: list[list[int]] = [[] for _ in asks]
        asked = [index for index, ask in enumerate(asks) if ask.order.count]
        if asked:
            for index, chain in zip(asked, self._chains([asks[index] for index in asked]), strict=True):
                chains[index] = chain
        return chains

    def _chains(self, asks: list[Ask]) -> list[list[int]]:
        model = self._model
        states = [_state(ask.state) for ask in asks]
        hidden = model.block(
            [ask.pending for ask in asks],
            [own.position for own in states],
            [own.rows.rows for own in states],
        )
        most = min(max(ask.order.count for ask in asks), model.config.block_size - 1)
        rows = hidden[:, 1 : 1 + most]
        logits = model.target.logits(rows.flatten(0, 1)).view(len(asks), most, -1)
        selector = Selector(model)
        return [
            selector.chain(ask.pending, own.position, logits[index], rows[index], ask.order)
            for index, (ask, own) in enumerate(zip(asks, states, strict=True))
        ]


class Selector:
    """Walks the candidates of a block's rows. In fp64 on the host: ranks that hold the same bits choose alike."""

    def __init__(self, model: DFlash2Rank) -> None:
        self._model = model

    def chain(self, pending: int, position: int, logits: Tensor, hidden: Tensor, order: DraftOrder) -> list[int]:
        """The guesses after `pending` at `position`, from the `logits` [n, vocab] and `hidden` [n, d] of its block."""
        model = self._model
        projected = kernels.linear(hidden, model.projection)
        found: list[int] = []
        likely, last = 1.0, pending
        for row in range(min(order.count, logits.shape[0])):
            ids, unary = best_candidates(logits[row], model.config.selector_top_k)
            where = torch.from_numpy(ids).to(hidden.device)
            edge = model.predecessors[last].double() * projected[row].double() * model.successors[where].double()
            scores: Floats = unary + edge.sum(1).cpu().numpy()
            noisy = scores
            if order.temperature > 0:
                noisy = scores / order.temperature + keyed_noise(order.seed, position + 1 + row, ids)
            pick = int(numpy.argmax(noisy))
            counted = noisy / order.softening if order.softening and order.temperature > 0 else scores
            likely *= float(numpy.exp(counted[pick] - counted.max()) / numpy.exp(counted - counted.max()).sum())
            if row > 0 and likely < order.least:
                break
            last = int(ids[pick])
            found.append(last)
        return found


def best_candidates(logits: Tensor, count: int) -> tuple[Ids, Floats]:
    """The `count` ids of the largest `logits` [vocab] and these in fp64: value descending, then id ascending."""
    least = torch.topk(logits, count).values[-1]
    ids: Ids = torch.nonzero(logits >= least).flatten().cpu().numpy()
    values: Floats = logits[logits >= least].double().cpu().numpy()
    first = numpy.lexsort((ids, -values))[:count]
    return ids[first], values[first]


def _state(state: SequenceState) -> DFlash2State:
    assert isinstance(state.draft, DFlash2State)
    return state.draft
