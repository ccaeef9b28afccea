# SPDX-License-Identifier: Apache-2.0
"""Rank 0's engine: admits requests, decides steps, has every rank execute them, and hands tokens to the event loop.

The steps run in one thread of their own. The event loop submits and cancels; between the two pass only the queue, a
flag per job and events posted to the loop. Nothing the HTTP side reads takes a lock that a step holds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sparkpair.cache.keeper import PoolKeeper
from sparkpair.comm.control import Leader
from sparkpair.comm.lockstep import Executed, Run, Slice, Step, StepRunner, solo_checksum
from sparkpair.drafting.orders import DraftOrders
from sparkpair.drafting.policy import Drafting
from sparkpair.errors import PeerLost
from sparkpair.filling import Filling, Portion
from sparkpair.grid import GRID
from sparkpair.job import Job, Outbox
from sparkpair.model.media_encoder import MediaEncoder
from sparkpair.request import (
    EngineError,
    EngineHealth,
    FinishedEvent,
    FinishReason,
    GenerationRequest,
    Logits,
    ReplyStats,
    TokensEvent,
)
from sparkpair.scheduler import Admission, SliceBudget
from sparkpair.stream import Stream

# Where nothing can go on before a picture is encoded, how long to wait before looking for new requests again.
PICTURE_WAIT_S = 0.02

# Prompt rows of one step, of all requests together; a multiple of the 64-token grid.
CHUNK_ROWS = 256


@dataclasses.dataclass(frozen=True, slots=True)
class EngineSettings:
    """`context` is the window of one request in tokens, `lanes` the number of requests that run at once.

    `window_rows` are the rows of all verify windows of a step together; `fill_budget_s` is how long a step may read
    prompts while others decode.
    """

    context: int
    lanes: int
    window_rows: int
    fill_budget_s: float


class LeaderEngine:
    """Implements request.Engine on rank 0."""

    def __init__(
        self,
        runner: StepRunner,
        leader: Leader | None,
        settings: EngineSettings,
        drafting: Drafting,
        keeper: PoolKeeper,
        orders: DraftOrders | None = None,
        *,
        world: int,
        on_death: Callable[[Exception], None],
        encoder: MediaEncoder | None = None,
    ) -> None:
        self._runner = runner
        self._leader = leader
        self._settings = settings
        self._world = world
        self._on_death = on_death
        self._encoder = encoder
        self._admission: Admission[Job] = Admission(settings.lanes)
        self._filling = Filling(SliceBudget(settings.fill_budget_s, CHUNK_ROWS, runner.units))
        self._drafting = drafting
        self._orders = orders
        self._keeper = keeper
        self._streams: list[Stream] = []
        self._outbox: Outbox | None = None
        self._slots = 0
        self._stopping = False
        self._error: str | None = None
        self._step_number = 0
        self._step_started: float | None = None
        self._totals = EngineHealth.nothing(settings.lanes)
        self._note_pool()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    @property
    def context_length(self) -> int:
        """See request.Engine."""
        return self._settings.context

    @property
    def world_size(self) -> int:
        """See request.Engine."""
        return self._world

    def start(self) -> None:
        """Begin to take requests."""
        if self._encoder is not None:
            self._encoder.start()
        self._thread.start()

    def submit(self, request: GenerationRequest) -> Job:
        """See request.Engine."""
        if request.media and self._encoder is None:
            raise EngineError("this server was started without a vision tower")
        loop = asyncio.get_running_loop()
        if self._outbox is None or self._outbox.loop is not loop:
            self._outbox = Outbox(loop)
        job = Job(request, self._cancel, self._outbox)
        if not self._admission.add(job):
            raise EngineError(self._error or "the server is stopping")
        return job

    def _cancel(self, job: Job) -> None:
        job.cancelled = True
        if self._admission.drop(job):
            self._finish_unstarted(job)

    def _finish_unstarted(self, job: Job) -> None:
        nothing = ReplyStats(len(job.request.prompt_ids), 0, 0, 0.0, 0.0, 0.0, self._runner.ranks)
        job.post(FinishedEvent("cancelled", nothing))

    def stop(self, patience_s: float | None = None) -> bool:
        """End running replies after their step, drop the waiting ones, and wait for the thread to end.

        False when it has not ended in time: it is in a step that does not end.
        """
        self._stopping = True
        for job in self._admission.close():
            self._finish_unstarted(job)
        self._thread.join(patience_s)
        if self._encoder is not None:
            self._encoder.stop()
        return not self._thread.is_alive()

    def health(self) -> EngineHealth:
        """See request.Engine."""
        started = self._step_started
        streams = list(self._streams)
        filling = sum(stream.prompt_left > 0 for stream in streams)
        paused = len(streams) - len(runnable(streams))
        return dataclasses.replace(
            self._totals,
            error=self._error,
            requests_running=len(streams),
            requests_waiting=self._admission.waiting,
            decoding=len(streams) - filling - paused,
            filling=filling,
            paused=paused,
            step=self._step_number,
            iteration_s=0.0 if started is None else time.monotonic() - started,
            ranks=self._runner.ranks,
        )

    def _loop(self) -> None:
        # How many compute for this thread it learns when it is asked; until then they are as many as there are cores.
        torch.get_num_threads()
        try:
            while not (self._admission.closed and not self._streams):
                while job := self._admission.admit(len(self._streams), self._fits):
                    self._begin(job)
                for stream in [*self._streams]:
                    if stream.job.cancelled or self._stopping:
                        self._finish(stream, "cancelled")
                if self._streams:
                    self._round()
                self._note_pool()
        except Exception as error:
            self._die(error)

    def _note_pool(self) -> None:
        """The pool's and the replies' figures as of now, for `health`, which is asked by another thread."""
        keeper = self._keeper
        self._totals = dataclasses.replace(
            self._totals,
            completion_tokens_running=self._produced(),
            kept_prompts=keeper.kept_count,
            kept_bytes=keeper.kept_bytes,
            pool_tokens=keeper.tokens,
            pool_free_tokens=keeper.free_tokens,
        )

    def _produced(self) -> int:
        return sum(stream.produced for stream in self._streams)

    def _fits(self, job: Job) -> bool:
        return self._keeper.fits(job.request.most_tokens)

    def _begin(self, job: Job) -> None:
        """Give a job its lane: from the kept prompt that saves most, or from nothing."""
        self._slots += 1
        stream = Stream(job, self._slots)
        self._streams.append(stream)
        prompt = job.request.content_ids
        shared = self._keeper.divergence(prompt)
        entry = self._keeper.begin(stream.slot, prompt, job.request.most_tokens)
        if entry is not None:
            stream.filled = stream.cached = len(entry.tokens)
        # Where another conversation may resume: the last block of this prompt, and what it shares with others.
        stream.marks = [mark for mark in {shared, (len(prompt) - 1) // GRID * GRID} if mark > stream.filled]
        if entry is not None and entry.logits is not None and stream.prompt_left == 0:
            self._deliver(stream, entry.logits)

    def _die(self, error: Exception) -> None:
        if self._error is not None:
            return
        self._error = f"the engine stopped: {error}"
        failed = EngineError(self._error)
        for job in [*self._admission.close(), *(stream.job for stream in self._streams)]:
            job.post(failed)
        self._streams = []
        self._on_death(error)

    def fail(self, error: Exception) -> None:
        """End because of something noticed outside a step (a follower left while idle)."""
        if not self._stopping:
            self._die(error)

    def _round(self) -> None:
        """One step: a verify window of every request that decodes, and a portion of the prompts that are being read."""
        active = runnable(self._streams)
        decoding = [stream for stream in active if stream.prompt_left == 0]
        filling = [stream for stream in active if stream.prompt_left > 0 and self._has_pictures(stream)]
        if self._encoder is not None and not decoding and not filling and not self._filling.open:
            self._encoder.wait(PICTURE_WAIT_S)
            return
        reading = self._filling.plan(filling, decoding=bool(decoding))
        windows = self._windows(decoding)
        self._keep([portion.stream for portion in reading.ended])
        names = self._keeper.take_keeping()
        media_rows = self._media_rows(reading.begun)
        executed = self._execute([*windows, *reading.whole], reading.part, names, media_rows)
        self._filling.measured(executed.slice_s)
        logits: Logits = executed.logits.numpy()
        self._totals = dataclasses.replace(self._totals, rounds_total=self._totals.rounds_total + bool(decoding))
        at = 0
        for stream, run, guesses in zip(decoding, windows, executed.drafts, strict=False):
            found = logits[at : at + run.logits + len(guesses)]
            at += len(found)
            self._verify(stream, found, guesses)
        for portion in reading.ended:
            found = logits[at : at + portion.run.logits]
            at += len(found)
            if portion.run.logits:
                self._keeper.complete(names.get(portion.stream.slot, 0), found)
                self._deliver(portion.stream, found)

    def _keep(self, reading: list[Stream]) -> None:
        """Keep the states behind this step that another conversation may resume."""
        for stream in reading:
            if stream.filled in stream.marks or stream.prompt_left == 0:
                self._keeper.keep(stream.slot, stream.job.request.content_ids[: stream.filled])

    def _windows(self, decoding: list[Stream]) -> list[Run]:
        runs = []
        each = self._settings.window_rows // len(decoding) if decoding else 0
        for stream in decoding:
            most = min(each, stream.budget_left) - 1
            drafted_for = stream.job.request.draft
            drafts = stream.admissible(self._drafting.propose(stream, most), most) if most > 0 and drafted_for else []
            order = None
            if self._orders is not None and drafted_for:
                order = self._orders.order(stream, 0 if drafts else max(0, most))
            rows = 1 + len(drafts) + (order.count if order else 0)
            self._keeper.need(stream.slot, len(stream.history) - 1 + rows)
            window = stream.open_window(drafts)
            runs.append(Run(stream.slot, window, decode=True, logits=len(window), kept=stream.kept, order=order))
        return runs

    def _verify(self, stream: Stream, logits: Logits, guesses: list[int]) -> None:
        """Deliver what a window yields, `guesses` of the drafter in it."""
        stream.widen_window(guesses)
        accepted = stream.accepted
        self._deliver(stream, logits)
        if guesses and self._orders is not None and stream in self._streams:
            self._orders.settled(stream.slot, len(guesses), stream.accepted - accepted)

    def _deliver(self, stream: Stream, logits: Logits) -> None:
        if stream.job.cancelled or self._stopping:
            return
        drafted = len(stream.window) - 1 if stream.window else 0
        tokens, reason = stream.absorb(logits)
        totals = self._totals
        self._totals = dataclasses.replace(
            totals,
            drafted_total=totals.drafted_total + drafted,
            accepted_total=totals.accepted_total + max(0, len(tokens) - 1),
        )
        if tokens:
            stream.job.post(TokensEvent(tuple(tokens)))
        if stream.failure is not None:
            stream.job.post(EngineError(f"the reply cannot go on: {stream.failure}"))
            self._finish(stream, "cancelled")
        elif reason is not None:
            self._finish(stream, reason)

    def _has_pictures(self, stream: Stream) -> bool:
        """Whether the pictures in the next portion of a prompt are encoded; if not, they are asked for."""
        media = stream.job.request.media
        if self._encoder is None or not media:
            return True
        return self._encoder.ready(stream.slot, (media, stream.filled, stream.filled + CHUNK_ROWS))

    def _media_rows(self, begun: list[Portion]) -> Tensor | None:
        """The rows of all pictures in the portions that enter the model, in the portions' order."""
        portions = [
            (portion.stream.job.request.media, portion.start, portion.end)
            for portion in begun
            if portion.stream.job.request.media
        ]
        return self._encoder.rows(portions) if self._encoder is not None and portions else None

    def _execute(
        self, runs: list[Run], part: Slice | None, kept: dict[int, int], media_rows: Tensor | None
    ) -> Executed:
        """One step on every rank; `kept` are the names of the states to keep by slot."""
        step = Step(self._step_number + 1, runs, self._keeper.take_orders(), list(kept.items()), part)
        self._step_started = time.monotonic()
        try:
            checksum = solo_checksum(step) if self._leader is None else self._leader.broadcast(step.message())
            executed = self._runner.execute(step, checksum, media_rows)
        except RuntimeError:
            if self._leader is None:
                raise
            raise self._leader.verdict() from None
        finally:
            self._step_started = None
        self._step_number = step.number
        return executed

    def _finish(self, stream: Stream, reason: FinishReason) -> None:
        """End a stream: its slot is released with the next step, its lane is free at once."""
        self._streams = [other for other in self._streams if other is not stream]
        self._filling.leave(stream)
        self._keeper.release(stream.slot)
        self._drafting.forget(stream)
        if self._encoder is not None:
            self._encoder.forget(stream.slot)
        if self._orders is not None:
            self._orders.forget(stream.slot)
        now = time.monotonic()
        first = stream.first_at
        stats = ReplyStats(
            prompt_tokens=len(stream.job.request.prompt_ids),
            cached_tokens=stream.cached,
            completion_tokens=stream.produced,
            prefill_s=(first or now) - stream.started,
            decode_s=now - first if first else 0.0,
            time_to_first_token_s=first - stream.job.submitted if first else 0.0,
            ranks=self._runner.ranks,
            drafted_tokens=stream.drafted,
            accepted_tokens=stream.accepted,
        )
        totals = self._totals
        self._totals = dataclasses.replace(
            totals,
            requests_total=totals.requests_total + 1,
            prompt_tokens_total=totals.prompt_tokens_total + stats.prompt_tokens,
            completion_tokens_total=totals.completion_tokens_total + stats.completion_tokens,
            completion_tokens_running=self._produced(),
            cached_tokens_total=totals.cached_tokens_total + stats.cached_tokens,
            prefill_seconds_total=totals.prefill_seconds_total + stats.prefill_s,
            decode_seconds_total=totals.decode_seconds_total + stats.decode_s,
        )
        stream.job.post(FinishedEvent(reason, stats))


def runnable(streams: list[Stream]) -> list[Stream]:
    """The streams that take part in the next step: background ones only where there is no other."""
    foreground = [stream for stream in streams if not stream.job.background]
    return foreground or list(streams)


def follow(runner: StepRunner, receive: Callable[[], tuple[dict[str, object], int]]) -> None:
    """A follower's life: execute every step rank 0 sends, until it says stop. Raises PeerLost or RuntimeError."""
    while True:
        message, checksum = receive()
        if "stop" in message:
            return
        fields = message.get("step")
        if not isinstance(fields, dict):
            raise PeerLost(f"rank 0 sent a message this rank does not know: {', '.join(message)}")
        runner.execute(Step.parse(fields), checksum)
