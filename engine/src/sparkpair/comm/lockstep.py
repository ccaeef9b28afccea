# SPDX-License-Identifier: Apache-2.0
"""Steps: rank 0 decides one, every rank executes it, and all compare what they executed.

A step is a small message. It names sequences by slot, so followers own nothing but weights and states. After a step
every rank reports its number, its message's checksum and the checksum of the logits it computed; a rank that diverged
in any of them is named and the pair ends, because its later answers could not be trusted.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from typing import Any

import torch
from torch import Tensor

from sparkpair.cache.state import SequenceState, Span
from sparkpair.comm.wire import Message
from sparkpair.errors import PeerLost
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.media_rows import MediaRows
from sparkpair.request import RankStep


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Tokens of one sequence to absorb.

    `decode` runs the serial form and leaves the rows waiting: `kept` of the sequence's next run says how many of them
    stay. `logits` is the number of last rows whose logits are wanted. `media` are the indices of tokens that stand for
    rows of pictures, which only rank 0 has.
    """

    slot: int
    tokens: list[int]
    decode: bool
    logits: int
    kept: int = 0
    media: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What every rank does next, in this order.

    Forget the slots in `released`; begin slots from kept states, `resumed` as pairs of slot and name; forget the kept
    states named in `dropped`; run `runs` in one forward pass; keep states of slots, `kept` as pairs of slot and name.
    """

    number: int
    runs: list[Run]
    released: list[int]
    dropped: list[int] = dataclasses.field(default_factory=list)
    resumed: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    kept: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def message(self) -> Message:
        """The step as a control message."""
        return {"step": dataclasses.asdict(self)}

    @staticmethod
    def parse(fields: dict[str, Any]) -> Step:
        """The step of a control message."""
        return Step(
            number=int(fields["number"]),
            runs=[Run(**run) for run in fields["runs"]],
            released=list(fields["released"]),
            dropped=list(fields["dropped"]),
            resumed=[(slot, name) for slot, name in fields["resumed"]],
            kept=[(slot, name) for slot, name in fields["kept"]],
        )


class StepRunner:
    """Executes steps on this rank; holds the sequences' states by slot and the kept ones by name."""

    def __init__(self, model: Glm5NextRank) -> None:
        self._model = model
        self._states: dict[int, SequenceState] = {}
        self._kept: dict[int, SequenceState] = {}
        self.ranks = tuple(RankStep(rank, 0) for rank in range(model.group.world))

    def execute(self, step: Step, checksum: int, media_rows: Tensor | None = None) -> Tensor:
        """Run one step and return the logits its runs ask for, [n, vocab] fp32, alike on every rank.

        `media_rows` [n, d], on rank 0 alone, are the rows of all media tokens of the step in order.

        Raises PeerLost naming the rank that executed something else, RuntimeError when the exchange fails.
        """
        for slot in step.released:
            self._states.pop(slot, None)
        for slot, name in step.resumed:
            self._states[slot] = self._kept[name].snapshot()
        for name in step.dropped:
            del self._kept[name]
        tokens: list[int] = []
        spans: list[Span] = []
        wanted: list[int] = []
        pictured: list[int] = []
        for run in step.runs:
            state = self._states.get(run.slot)
            if state is None:
                state = self._states[run.slot] = self._model.new_state()
            state.commit(run.kept)
            spans.append(Span(slice(len(tokens), len(tokens) + len(run.tokens)), state, run.decode))
            pictured.extend(len(tokens) + index for index in run.media)
            tokens.extend(run.tokens)
            wanted.extend(range(len(tokens) - run.logits, len(tokens)))
        batch = torch.tensor(tokens, dtype=torch.int64, device=self._model.device)
        media = MediaRows(pictured, media_rows) if pictured else None
        logits = self._model.forward(batch, spans, wanted, media)
        for slot, name in step.kept:
            self._kept[name] = self._states[slot].snapshot()
        self._compare(step.number, checksum, zlib.crc32(logits.cpu().numpy().tobytes()))
        return logits

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


def solo_checksum(step: Step) -> int:
    """The checksum of a step that is sent to nobody."""
    return zlib.crc32(json.dumps(step.message(), separators=(",", ":")).encode())
