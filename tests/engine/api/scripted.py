# SPDX-License-Identifier: Apache-2.0
"""An engine that plays a script: the source of events under the real HTTP side.

Nothing here waits by the clock. A test holds a request in the queue, in its prompt or between tokens for as
long as it wants and sees what the HTTP side does meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence

import numpy
from sparkpair.request import (
    EngineError,
    EngineHealth,
    Event,
    FinishedEvent,
    FinishReason,
    GenerationRequest,
    Matcher,
    RankStep,
    ReplyStats,
    TokensEvent,
)

HOLD = "hold"
"""In a script: wait until the test calls `go_on`, or the request is cancelled."""

FAIL = "fail"
"""In a script: the engine dies."""

VOCABULARY = 1536
"""Ids of the model that the script plays."""

Script = Sequence[Sequence[int] | str]


class ScriptedReply:
    """One submitted request; `started` and `cancelled` are set as it happens."""

    def __init__(self, request: GenerationRequest, script: Script, cached: int) -> None:
        self.request = request
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.ended = asyncio.Event()
        self._go_on = asyncio.Event()
        self._script = script
        self._cached = cached
        self._matcher: Matcher | None = None

    def go_on(self) -> None:
        """Leave the hold that the script is in."""
        self._go_on.set()

    def cancel(self) -> None:
        """See request.Reply."""
        if not self.ended.is_set():
            self.cancelled.set()

    async def _hold(self) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._go_on, self.cancelled)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._go_on.clear()

    async def events(self) -> AsyncIterator[Event]:
        """See request.Reply: the script up to a stop id, the budget, its end, or a cancellation."""
        count = 0
        reason: FinishReason = "length"
        self.started.set()
        with contextlib.suppress(_Over):
            for step in self._script:
                if step == HOLD:
                    await self._hold()
                elif step == FAIL:
                    raise EngineError("rank 1 left: it was killed")
                if self.cancelled.is_set():
                    reason = "cancelled"
                    raise _Over
                if isinstance(step, str):
                    continue
                allowed = self._constrained(list(step)[: self.request.max_new_tokens - count])
                stops = [index for index, token in enumerate(allowed) if token in self.request.stop_ids]
                if stops:
                    allowed = allowed[: stops[0] + 1]
                    reason = "stop"
                if allowed:
                    count += len(allowed)
                    yield TokensEvent(tuple(allowed))
                if stops or count == self.request.max_new_tokens:
                    raise _Over
        if self.cancelled.is_set() and reason == "length" and count < self.request.max_new_tokens:
            reason = "cancelled"
        self.ended.set()
        stats = ReplyStats(
            prompt_tokens=len(self.request.prompt_ids),
            cached_tokens=self._cached,
            completion_tokens=count,
            prefill_s=0.25,
            decode_s=0.5,
            time_to_first_token_s=0.3,
            ranks=(RankStep(0, 7), RankStep(1, 7)),
            drafted_tokens=9,
            accepted_tokens=6,
        )
        yield FinishedEvent(reason, stats)

    def _constrained(self, step: list[int]) -> list[int]:
        """The tokens that a model which wants to say the step's would draw: where one may not come, the first that may.
        Raises EngineError when the request's constraint fails.
        """
        if self.request.constraint is None:
            return step
        if self._matcher is None:
            self._matcher = self.request.constraint.matcher()
        drawn = []
        for wanted in step:
            logits = numpy.zeros(VOCABULARY, numpy.float32)
            logits[wanted] = 1.0
            try:
                drawn.append(self._matcher.accept(int(numpy.argmax(self._matcher.mask(logits)))))
            except Exception as error:
                raise EngineError(str(error)) from error
            if drawn[-1] in self.request.stop_ids:
                break
        return drawn


class _Over(Exception):
    """The reply has ended."""


@dataclasses.dataclass
class ScriptedEngine:
    """Implements request.Engine: a submitted request plays the next of `scripts`, or else `script`."""

    script: Script = ()
    context_length: int = 4096
    world_size: int = 2
    cached: int = 0
    error: str | None = None

    def __post_init__(self) -> None:
        self.replies: list[ScriptedReply] = []
        self.scripts: list[Script] = []
        self._submitted = asyncio.Event()

    def submit(self, request: GenerationRequest) -> ScriptedReply:
        """See request.Engine."""
        if self.error is not None:
            raise EngineError(self.error)
        script = self.scripts.pop(0) if self.scripts else self.script
        reply = ScriptedReply(request, script, self.cached)
        self.replies.append(reply)
        self._submitted.set()
        return reply

    async def submitted(self) -> ScriptedReply:
        """Wait for the next request."""
        await self._submitted.wait()
        self._submitted.clear()
        return self.replies[-1]

    @property
    def last(self) -> GenerationRequest:
        """The request submitted last."""
        return self.replies[-1].request

    def health(self) -> EngineHealth:
        """See request.Engine."""
        running = sum(not reply.ended.is_set() for reply in self.replies)
        return EngineHealth(
            error=self.error,
            requests_running=running,
            requests_waiting=2,
            requests_total=len(self.replies) - running,
            prompt_tokens_total=11,
            completion_tokens_total=22,
            completion_tokens_running=5,
            cached_tokens_total=3,
            prefill_seconds_total=1.5,
            decode_seconds_total=2.5,
            decoding=running,
            filling=0,
            max_streams=1,
            step=57,
            iteration_s=0.125,
            ranks=(RankStep(0, 57), RankStep(1, 57)),
            rounds_total=13,
            drafted_total=18,
            accepted_total=12,
        )
