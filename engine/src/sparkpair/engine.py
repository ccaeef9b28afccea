# SPDX-License-Identifier: Apache-2.0
"""Rank 0's engine: takes requests, decides steps, has every rank execute them, and hands tokens to the event loop.

The steps run in one thread of their own. The event loop submits and cancels; between the two pass only the queue, a
flag per job and events posted to the loop. Nothing the HTTP side reads takes a lock that a step holds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import numpy
import numpy.typing

from sparkpair.comm.control import Leader
from sparkpair.comm.lockstep import Run, Step, StepRunner, solo_checksum
from sparkpair.errors import PeerLost
from sparkpair.request import (
    EngineError,
    EngineHealth,
    Event,
    FinishedEvent,
    FinishReason,
    GenerationRequest,
    ReplyStats,
    TokensEvent,
)
from sparkpair.sampling import prompt_seed, sample
from sparkpair.scheduler import Scheduler

# Prompt rows of one step; a multiple of the 64-token grid. A client that leaves frees the engine within a step.
CHUNK_ROWS = 256


class Job:
    """A submitted request; the Reply that the HTTP side iterates."""

    def __init__(self, request: GenerationRequest, cancel: Callable[[Job], None]) -> None:
        self.request = request
        self.cancelled = False
        self.submitted = time.monotonic()
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | EngineError] = asyncio.Queue()

    @property
    def background(self) -> bool:
        """Whether this request waits behind the others."""
        return self.request.background

    def post(self, event: Event | EngineError) -> None:
        """Hand an event to the event loop; from any thread. A loop that has closed has no reader left."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:
            self.cancelled = True

    async def events(self) -> AsyncIterator[Event]:
        """See request.Reply."""
        while True:
            event = await self._queue.get()
            if isinstance(event, EngineError):
                raise event
            yield event
            if isinstance(event, FinishedEvent):
                return

    def cancel(self) -> None:
        """See request.Reply."""
        self._cancel(self)


class LeaderEngine:
    """Implements request.Engine on rank 0."""

    def __init__(
        self,
        runner: StepRunner,
        leader: Leader | None,
        *,
        context: int,
        world: int,
        on_death: Callable[[Exception], None],
    ) -> None:
        self._runner = runner
        self._leader = leader
        self._context = context
        self._world = world
        self._on_death = on_death
        self._scheduler: Scheduler[Job] = Scheduler()
        self._stopping = False
        self._error: str | None = None
        self._step_number = 0
        self._step_started: float | None = None
        self._to_release: list[int] = []
        self._running: Job | None = None
        self._phase = "idle"
        self._requests_total = 0
        self._prompt_tokens_total = 0
        self._completion_tokens_total = 0
        self._prefill_seconds_total = 0.0
        self._decode_seconds_total = 0.0
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    @property
    def context_length(self) -> int:
        """See request.Engine."""
        return self._context

    @property
    def world_size(self) -> int:
        """See request.Engine."""
        return self._world

    def start(self) -> None:
        """Begin to take requests."""
        self._thread.start()

    def submit(self, request: GenerationRequest) -> Job:
        """See request.Engine."""
        job = Job(request, self._cancel)
        if not self._scheduler.add(job):
            raise EngineError(self._error or "the server is stopping")
        return job

    def _cancel(self, job: Job) -> None:
        job.cancelled = True
        if self._scheduler.drop(job):
            job.post(FinishedEvent("cancelled", self._stats(job, 0, 0.0, 0.0, 0.0)))

    def stop(self) -> None:
        """End the running reply after its step, drop the waiting ones, and wait for the thread to end."""
        self._stopping = True
        for job in self._scheduler.close():
            job.post(FinishedEvent("cancelled", self._stats(job, 0, 0.0, 0.0, 0.0)))
        self._thread.join()

    def health(self) -> EngineHealth:
        """See request.Engine."""
        started = self._step_started
        return EngineHealth(
            error=self._error,
            requests_running=int(self._running is not None),
            requests_waiting=self._scheduler.waiting,
            requests_total=self._requests_total,
            prompt_tokens_total=self._prompt_tokens_total,
            completion_tokens_total=self._completion_tokens_total,
            cached_tokens_total=0,
            prefill_seconds_total=self._prefill_seconds_total,
            decode_seconds_total=self._decode_seconds_total,
            decoding=int(self._phase == "decode"),
            filling=int(self._phase == "prefill"),
            max_streams=1,
            step=self._step_number,
            iteration_s=0.0 if started is None else time.monotonic() - started,
            ranks=self._runner.ranks,
        )

    def _loop(self) -> None:
        job: Job | None = None
        try:
            while (job := self._scheduler.take()) is not None:
                self._running = job
                self._serve(job)
        except Exception as error:
            self._die(error, job)

    def _die(self, error: Exception, job: Job | None) -> None:
        if self._error is not None:
            return
        self._error = f"the engine stopped: {error}"
        failed = EngineError(self._error)
        for waiting in self._scheduler.close():
            waiting.post(failed)
        if job is not None:
            job.post(failed)
        self._running, self._phase = None, "idle"
        self._on_death(error)

    def fail(self, error: Exception) -> None:
        """End because of something noticed outside a step (a follower left while idle)."""
        if not self._stopping:
            self._die(error, self._running)

    def _execute(self, runs: list[Run]) -> numpy.typing.NDArray[numpy.float32]:
        """One step on every rank; the logits asked for, [n, vocab] fp32."""
        step = Step(self._step_number + 1, runs, self._to_release)
        self._to_release = []
        self._step_started = time.monotonic()
        try:
            checksum = solo_checksum(step) if self._leader is None else self._leader.broadcast(step.message())
            logits = self._runner.execute(step, checksum)
        except RuntimeError:
            if self._leader is None:
                raise
            raise self._leader.verdict() from None
        finally:
            self._step_started = None
        self._step_number = step.number
        result: numpy.typing.NDArray[numpy.float32] = logits.cpu().numpy()
        return result

    def _serve(self, job: Job) -> None:
        """Run one request from its prompt to its last event."""
        request = job.request
        slot = self._step_number + 1
        seed = request.sampling.seed if request.sampling.seed is not None else prompt_seed(request.prompt_ids)
        started = time.monotonic()
        self._phase = "prefill"
        logits = self._prefill(job, slot)
        prefilled = time.monotonic()
        self._phase = "decode"
        first_at = 0.0
        produced = 0
        reason: FinishReason = "cancelled"
        while logits is not None and not self._left(job):
            token = self._draw(logits, request, seed, produced)
            produced += 1
            first_at = first_at or time.monotonic()
            job.post(TokensEvent((token,)))
            if token in request.stop_ids:
                reason = "stop"
                break
            if produced == request.max_new_tokens:
                reason = "length"
                break
            logits = self._execute([Run(slot, [token], decode=True, logits=True)])[0]
        self._to_release.append(slot)
        ended = time.monotonic()
        self._requests_total += 1
        self._prompt_tokens_total += len(request.prompt_ids)
        self._completion_tokens_total += produced
        self._prefill_seconds_total += prefilled - started
        self._decode_seconds_total += ended - prefilled
        ttft = first_at - job.submitted if first_at else 0.0
        # Before the last event: whoever has seen a reply end finds the engine idle.
        self._running, self._phase = None, "idle"
        job.post(FinishedEvent(reason, self._stats(job, produced, prefilled - started, ended - prefilled, ttft)))

    def _left(self, job: Job) -> bool:
        return job.cancelled or self._stopping

    def _prefill(self, job: Job, slot: int) -> numpy.typing.NDArray[numpy.float32] | None:
        """Absorb the prompt chunk by chunk; the last token's logits, or None when the client left meanwhile."""
        prompt = job.request.prompt_ids
        logits = None
        for start in range(0, len(prompt), CHUNK_ROWS):
            if self._left(job):
                return None
            chunk = list(prompt[start : start + CHUNK_ROWS])
            last = start + CHUNK_ROWS >= len(prompt)
            found = self._execute([Run(slot, chunk, decode=False, logits=last)])
            logits = found[0] if last else None
        return logits

    @staticmethod
    def _draw(logits: numpy.typing.NDArray[numpy.float32], request: GenerationRequest, seed: int, produced: int) -> int:
        if produced < request.min_new_tokens and request.stop_ids:
            logits = logits.copy()
            logits[[token for token in request.stop_ids if token < len(logits)]] = -numpy.inf
        return sample(logits, request.sampling, seed, len(request.prompt_ids) + produced)

    def _stats(self, job: Job, produced: int, prefill_s: float, decode_s: float, ttft: float) -> ReplyStats:
        return ReplyStats(
            prompt_tokens=len(job.request.prompt_ids),
            cached_tokens=0,
            completion_tokens=produced,
            prefill_s=prefill_s,
            decode_s=decode_s,
            time_to_first_token_s=ttft,
            ranks=self._runner.ranks,
        )


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
