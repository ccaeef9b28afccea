# SPDX-License-Identifier: Apache-2.0
"""Steps: rank 0 decides one, every rank executes it, and all compare what they executed.

A step is a small message. It names sequences by slot, so followers own nothing but weights and states. After a step
every rank reports its number, its message's checksum and the checksum of the logits it computed; a rank that diverged
in any of them is named and the pair ends, because its later answers could not be trusted.
"""

from __future__ import annotations

import dataclasses
import json
import time
import zlib
from typing import Any

import torch
from torch import Tensor

from sparkpair.cache.orders import Order
from sparkpair.cache.pool import Place, RowPool
from sparkpair.cache.state import KeptState, SequenceState, Span
from sparkpair.comm.fill import OpenFill, units_of
from sparkpair.comm.stuck import Running
from sparkpair.comm.wire import Message
from sparkpair.drafting.drafter import Ask, Passed, RankDrafter
from sparkpair.drafting.orders import DraftOrder
from sparkpair.errors import PeerLost
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.media_rows import MediaRows
from sparkpair.request import RankStep


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Tokens of one sequence to absorb.

    `decode` runs the serial form and leaves the rows waiting: `kept` of the sequence's next run says how many of them
    stay. `logits` is the number of last rows whose logits are wanted. `media` are the indices of tokens that stand for
    rows of pictures, which only rank 0 has. With an order the drafter first adds its guesses to the tokens, and their
    logits are wanted too.
    """

    slot: int
    tokens: list[int]
    decode: bool
    logits: int
    kept: int = 0
    order: DraftOrder | None = None
    media: list[int] = dataclasses.field(default_factory=list)

    @staticmethod
    def parse(fields: dict[str, Any]) -> Run:
        """The run of a control message."""
        order = fields["order"]
        return Run(**{**fields, "order": None if order is None else DraftOrder(**order)})


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """What a step does about the portion of prompts that passes through the layers in several steps (comm/fill.py).

    `runs` begin one; without them the open one goes on. It advances by `units`.
    """

    units: int
    runs: list[Run] = dataclasses.field(default_factory=list)

    @staticmethod
    def parse(fields: dict[str, Any]) -> Slice:
        """The slice of a control message."""
        return Slice(int(fields["units"]), [Run.parse(run) for run in fields["runs"]])


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What every rank does next, in this order.

    Carry out `orders`; run `runs` in one forward pass, then the slice in `part`; keep states of slots, `kept` as pairs
    of slot and name.
    """

    number: int
    runs: list[Run]
    orders: list[Order]
    kept: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    part: Slice | None = None

    def message(self) -> Message:
        """The step as a control message."""
        return {"step": dataclasses.asdict(self)}

    @staticmethod
    def parse(fields: dict[str, Any]) -> Step:
        """The step of a control message."""
        return Step(
            number=int(fields["number"]),
            runs=[Run.parse(run) for run in fields["runs"]],
            orders=[Order(*order) for order in fields["orders"]],
            kept=[(slot, name) for slot, name in fields["kept"]],
            part=None if fields["part"] is None else Slice.parse(fields["part"]),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Executed:
    """What a step gave: `logits` [n, vocab] fp32 of the rows its runs want, and the guesses added to each run.

    Behind the runs' logits are those of the portion whose pass ended. `slice_s` is how long the slice took here.
    """

    logits: Tensor
    drafts: list[list[int]]
    slice_s: float = 0.0


class _Batch:
    """Runs as rows of one pass, each with the guesses that the drafter added to it."""

    def __init__(self, runs: list[Run], states: list[SequenceState], drafts: list[list[int]] | None) -> None:
        self.runs = runs
        self.tokens: list[int] = []
        self.passed: list[Passed] = []
        self.wanted: list[int] = []
        self._pictured: list[int] = []
        for run, state, guesses in zip(runs, states, drafts or [[] for _ in runs], strict=True):
            first = len(self.tokens)
            rows = slice(first, first + len(run.tokens) + len(guesses))
            self.passed.append(Passed(state, rows, [*run.tokens, *guesses], run.decode))
            self._pictured.extend(first + index for index in run.media)
            self.tokens.extend(self.passed[-1].tokens)
            self.wanted.extend(range(rows.stop - run.logits - len(guesses), rows.stop))

    @property
    def by_slot(self) -> dict[int, Passed]:
        """The rows of each sequence."""
        return {run.slot: part for run, part in zip(self.runs, self.passed, strict=True)}

    @property
    def ends(self) -> set[int]:
        """The slots whose last row's logits are wanted."""
        return {run.slot for run in self.runs if run.logits}

    def media(self, rows: Tensor | None) -> MediaRows | None:
        """Where pictures go, with their rows on rank 0."""
        return MediaRows(self._pictured, rows) if self._pictured else None


class StepRunner:
    """Executes steps on this rank; holds the pool, the sequences' states by slot and the kept ones by name."""

    def __init__(self, model: Glm5NextRank, pool: RowPool, drafter: RankDrafter | None = None) -> None:
        self._model = model
        self._pool = pool
        self._drafter = drafter
        self._places: dict[int, Place] = {}
        self._states: dict[int, SequenceState] = {}
        self._kept: dict[int, KeptState] = {}
        self._fill: OpenFill | None = None
        # The step in which this rank is, and since when; read by the watch of stuck steps.
        self.running: Running | None = None
        self.ranks = tuple(RankStep(rank, 0) for rank in range(model.group.world))

    @property
    def units(self) -> int:
        """Units of work in a pass that is cut into slices."""
        return units_of(self._model)

    @property
    def waiting(self) -> bool:
        """Whether this rank waits for the others now; asked from another thread."""
        return self._model.group.waiting

    def execute(self, step: Step, checksum: int, media_rows: Tensor | None = None) -> Executed:
        """Run one step; its results are alike on every rank.

        `media_rows` [n, d], on rank 0 alone, are the rows of all media tokens of the step in order.

        Raises PeerLost naming the rank that executed something else, RuntimeError when the exchange fails.
        """
        self.running = (step.number, time.monotonic())
        try:
            return self._execute(step, checksum, media_rows)
        finally:
            self.running = None

    def _execute(self, step: Step, checksum: int, media_rows: Tensor | None) -> Executed:
        for order in step.orders:
            self._carry_out(order)
        if self._fill is not None and self._fill.empty:
            self._fill = None
        states = [self._committed(run) for run in step.runs]
        drafts = self._draft(step.runs, states)
        batch = _Batch(step.runs, states, drafts)
        logits = self._whole(batch, media_rows) if step.runs else self._model.no_logits()
        found = logits.cpu()
        mark = b""
        began = time.monotonic()
        if step.part is not None:
            if step.part.runs:
                begun = _Batch(step.part.runs, [self._committed(run) for run in step.part.runs], None)
                self._fill = OpenFill(self._model, self._drafter, begun.by_slot, begun.ends, begun.media(media_rows))
            found, mark = self._advance(step.part.units, found)
        slice_s = time.monotonic() - began
        for slot, name in step.kept:
            self._kept[name] = self._states[slot].keep()
        result = zlib.crc32(mark + found.numpy().tobytes(), zlib.crc32(json.dumps(drafts).encode()))
        self._compare(step.number, checksum, result)
        return Executed(found, drafts, slice_s)

    def _whole(self, batch: _Batch, media_rows: Tensor | None) -> Tensor:
        """All layers of everything in the batch, in one pass; the wanted logits."""
        tokens = torch.tensor(batch.tokens, dtype=torch.int64, device=self._model.device)
        spans = [Span(part.rows, part.state, part.decode) for part in batch.passed]
        watch = None if self._drafter is None else self._drafter.watch
        logits = self._model.forward(tokens, spans, batch.wanted, batch.media(media_rows), watch)
        if self._drafter is not None:
            # A window without an order is of a request that is never drafted for.
            follows = zip(batch.passed, batch.runs, strict=True)
            self._drafter.passed([part for part, run in follows if not run.decode or run.order is not None])
        return logits

    def _advance(self, units: int, found: Tensor) -> tuple[Tensor, bytes]:
        """Run a slice: the logits with those of a pass that ended, or a mark of one that did not."""
        assert self._fill is not None
        ended = self._fill.run(units)
        if ended is None:
            return found, self._fill.mark().cpu().numpy().tobytes()
        self._fill = None
        return torch.cat([found, ended.cpu()]), b""

    def _carry_out(self, order: Order) -> None:
        """See cache.orders."""
        name = order.name
        match order.kind:
            case "place":
                place = self._places.setdefault(name, Place(order.base, order.size))
                place.size = order.size
            case "move":
                place = self._places[name]
                self._pool.copy(place.base, order.base, order.rows)
                place.base = order.base
            case "copy":
                self._pool.copy(self._places[order.source].base, self._places[name].base, order.rows)
            case "free":
                del self._places[name]
            case "start":
                self._states[name] = self._new_state(self._places[order.source])
            case "resume":
                self._states[name] = self._kept[order.kept].resume(self._places[order.source])
            case "release":
                del self._states[name]
                if self._fill is not None:
                    self._fill.leave(name)
            case "drop":
                del self._kept[name]

    def _new_state(self, place: Place) -> SequenceState:
        state = self._model.new_state(self._pool, place)
        if self._drafter is not None:
            state.draft = self._drafter.new_state(self._pool, place)
        return state

    def _committed(self, run: Run) -> SequenceState:
        """The state a run continues, with what stays of its last window."""
        state = self._states[run.slot]
        state.commit(run.kept)
        return state

    def _draft(self, runs: list[Run], states: list[SequenceState]) -> list[list[int]]:
        """The guesses for each run; none for those without an order."""
        drafts: list[list[int]] = [[] for _ in runs]
        asks = {
            index: Ask(states[index], run.kept, run.tokens[0], run.order)
            for index, run in enumerate(runs)
            if run.order is not None
        }
        if self._drafter is not None and asks:
            for index, guesses in zip(asks, self._drafter.draft(list(asks.values())), strict=True):
                drafts[index] = guesses
        return drafts

    def _compare(self, number: int, checksum: int, result: int) -> None:
        reports = self._model.group.gather_numbers([number, checksum, result])
        for rank, (their_number, their_checksum, their_result) in enumerate(reports):
            if their_number != number or their_checksum != checksum:
                raise PeerLost(
                    f"rank {rank} executed step {their_number} ({their_checksum:08x}) while rank "
                    f"{self._model.group.rank} executed step {number} ({checksum:08x}): the ranks are out of step"
                )
            if their_result != reports[0][2]:
                raise PeerLost(f"rank {rank} computed other logits than rank 0 in step {number}: its results differ")
        self.ranks = tuple(RankStep(rank, report[0]) for rank, report in enumerate(reports))
        self._model.group.settle()


def solo_checksum(step: Step) -> int:
    """The checksum of a step that is sent to nobody."""
    return zlib.crc32(json.dumps(step.message(), separators=(",", ":")).encode())
