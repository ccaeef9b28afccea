# SPDX-License-Identifier: Apache-2.0
"""A portion of prompts on its way through the layers in several steps, so that others decode between them.

Between two steps every rank keeps the portion's streams after the last layer that ran. Its sequences count the portion
as absorbed only at the end; the layers behind hold it already, which nobody can see, because a sequence that is being
read is neither decoded nor kept. The end of the pass (head, drafter) is a unit of work of its own behind the layers.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sparkpair.cache.state import Span
from sparkpair.drafting.drafter import Passed, RankDrafter
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.media_rows import MediaRows


def units_of(model: Glm5NextRank) -> int:
    """Units of a whole pass: the layers and the end."""
    return len(model.layers) + 1


class OpenFill:
    """The portion that is open on this rank. `parts` are its sequences by slot; `wanted` has those that want logits."""

    def __init__(
        self,
        model: Glm5NextRank,
        drafter: RankDrafter | None,
        parts: dict[int, Passed],
        wanted: set[int],
        media: MediaRows | None,
    ) -> None:
        self._model = model
        self._drafter = drafter
        self._parts = parts
        self._wanted = wanted
        tokens = [token for part in parts.values() for token in part.tokens]
        # What the drafter looks at, which sees the windows of other requests meanwhile.
        self._watched: list[tuple[int, Tensor]] = []
        self._done = 0
        self._streams = model.enter(torch.tensor(tokens, dtype=torch.int64, device=model.device), media, self._watch)

    @property
    def empty(self) -> bool:
        """Whether every sequence has left."""
        return not self._parts

    def leave(self, slot: int) -> None:
        """A sequence ended before its portion did: its rows go, and the others' do not notice."""
        if slot not in self._parts:
            return
        gone = self._parts.pop(slot).rows
        stay = torch.ones(self._streams.shape[0], dtype=torch.bool, device=self._streams.device)
        stay[gone] = False
        self._streams = self._streams[stay]
        self._watched = [(layer, streams[stay]) for layer, streams in self._watched]
        count = gone.stop - gone.start
        for other, part in self._parts.items():
            if part.rows.start >= gone.stop:
                rows = slice(part.rows.start - count, part.rows.stop - count)
                self._parts[other] = dataclasses.replace(part, rows=rows)

    def run(self, units: int) -> Tensor | None:
        """Run the next `units`; logits [n, vocab] of the last rows that are wanted when the pass ends with them."""
        layers = len(self._model.layers)
        last = min(self._done + units, layers)
        spans = [Span(part.rows, part.state, decode=False) for part in self._parts.values()]
        self._streams = self._model.through(self._streams, spans, range(self._done, last), self._watch)
        ends = self._done + units > layers
        self._done = last
        if not ends:
            return None
        for span in spans:
            span.advance()
        if self._drafter is not None:
            for layer, streams in self._watched:
                self._drafter.watch(layer, streams)
            self._drafter.passed(list(self._parts.values()))
        rows = [part.rows.stop - 1 for slot, part in self._parts.items() if slot in self._wanted]
        return self._model.logits_of(self._streams, rows)

    def mark(self) -> Tensor:
        """A row of the streams, fp32, by which ranks can see between two steps that they hold the same."""
        return self._streams[-1].float()

    def _watch(self, layer: int, streams: Tensor) -> None:
        if self._drafter is not None and layer in self._drafter.watched:
            self._watched.append((layer, streams))
