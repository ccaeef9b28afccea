# SPDX-License-Identifier: Apache-2.0
"""What a step asks of a drafter on every rank.

A drafter keeps a state of its own beside each sequence's. It sees the rows of every forward pass; prompt rows are
absorbed at once, the rows of a window when the next order says how many of them stayed. All ranks hold the same bits
and so guess the same tokens; rank 0 reads them with the logits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from sparkpair.cache.pool import Place, RowPool
from sparkpair.cache.state import DraftState, SequenceState
from sparkpair.drafting.orders import DraftOrder


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """One sequence's order: `kept` rows of its last window stay (0 after the prompt), then comes `pending`."""

    state: SequenceState
    kept: int
    pending: int
    order: DraftOrder


@dataclasses.dataclass(frozen=True, slots=True)
class Passed:
    """Rows of the batch that have gone through the model: `tokens` of one sequence. `decode` rows form a window."""

    state: SequenceState
    rows: slice
    tokens: list[int]
    decode: bool


class RankDrafter(Protocol):
    """A drafter as one rank holds it; it has rows in `pool_layers` layers of the pool, behind the backbone's."""

    pool_layers: int

    @property
    def watched(self) -> frozenset[int]:
        """The layers whose streams it looks at, EMBEDDED among them where it looks at what they begin with."""

    def new_state(self, pool: RowPool, place: Place) -> DraftState:
        """The empty state of a new sequence, with its rows in `place`."""

    def watch(self, layer: int, streams: Tensor) -> None:
        """During a forward pass: the streams [T, S, d] after `layer`."""

    def passed(self, parts: Sequence[Passed]) -> None:
        """After a forward pass: whose rows were watched. Rows that belong to none of `parts` are forgotten."""

    def draft(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Settle each sequence's last window and guess what follows; alike on every rank."""
