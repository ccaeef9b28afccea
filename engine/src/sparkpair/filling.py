# SPDX-License-Identifier: Apache-2.0
"""Rank 0's side of reading prompts: whose tokens are read next, how many, and in how many steps.

Where nobody decodes a portion passes through the model in one step, in one pass with everything else. Beside decoding
requests it is cut into slices of layers, so that each step is a round of theirs and a slice of about the fill budget.
"""

from __future__ import annotations

import dataclasses

from sparkpair.comm.lockstep import Run, Slice
from sparkpair.request import media_indices
from sparkpair.scheduler import SliceBudget, fill_shares
from sparkpair.stream import Stream


@dataclasses.dataclass(slots=True)
class Portion:
    """The next tokens of one prompt: `run` absorbs those up to position `end`."""

    stream: Stream
    run: Run
    end: int

    @property
    def start(self) -> int:
        """The position of the first."""
        return self.end - len(self.run.tokens)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What one step reads.

    `whole` portions are in the step's one pass. `part` is a slice of the open pass. `begun` are the portions whose
    tokens enter the model with this step, `ended` those that leave it: their streams count them as read already.
    """

    whole: list[Run] = dataclasses.field(default_factory=list)
    part: Slice | None = None
    begun: list[Portion] = dataclasses.field(default_factory=list)
    ended: list[Portion] = dataclasses.field(default_factory=list)


class Filling:
    """Plans the reading of every step. One pass is open at a time, and ends before the next begins."""

    def __init__(self, budget: SliceBudget) -> None:
        self._budget = budget
        self._open: list[Portion] = []
        self._unit = 0
        # What the slice of the step that runs will have measured: first unit, units, rows.
        self._running: tuple[int, int, int] | None = None

    @property
    def open(self) -> bool:
        """Whether a pass waits for its next slice."""
        return bool(self._open)

    def leave(self, stream: Stream) -> None:
        """A stream has ended; the ranks drop its rows when its slot is released."""
        self._open = [portion for portion in self._open if portion.stream is not stream]

    def plan(self, filling: list[Stream], *, decoding: bool) -> Reading:
        """What the next step reads of the prompts in `filling`, the oldest first, or of the pass that is open."""
        begun: list[Portion] = []
        if not self._open:
            rows = self._budget.rows(decoding=decoding)
            shares = fill_shares([stream.to_next_mark for stream in filling], rows)
            begun = [_portion(stream, count) for stream, count in zip(filling, shares, strict=True) if count]
            if not (decoding and self._budget.cuts):
                return Reading([portion.run for portion in begun], None, begun, _ended(begun))
            self._open, self._unit = begun, 0
        if not self._open:
            return Reading()
        rows = sum(len(portion.run.tokens) for portion in self._open)
        units = self._budget.next_units(self._unit, rows, decoding=decoding)
        self._running = (self._unit, units, rows) if decoding else None
        self._unit += units
        part = Slice(units, [portion.run for portion in begun])
        if self._unit < self._budget.units:
            return Reading([], part, begun, [])
        ended, self._open = self._open, []
        return Reading([], part, begun, _ended(ended))

    def measured(self, seconds: float) -> None:
        """How long the slice of the last step took."""
        if self._running is not None:
            self._budget.measured(*self._running, seconds)
            self._running = None


def _portion(stream: Stream, count: int) -> Portion:
    """The next `count` tokens of a prompt, with the last one's logits at the prompt's end."""
    start, stop = stream.filled, stream.filled + count
    media = media_indices(stream.job.request.media, start, stop)
    logits = int(stream.prompt_left == count)
    return Portion(stream, Run(stream.slot, stream.history[start:stop], False, logits, media=media), stop)


def _ended(portions: list[Portion]) -> list[Portion]:
    for portion in portions:
        portion.stream.filled = portion.end
    return portions
