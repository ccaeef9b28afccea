# SPDX-License-Identifier: Apache-2.0
"""One reply of the engine, seen as one stream of pieces that ends with the reply's figures.

Streamed and unstreamed replies read the same stream, so that they cannot differ. A reply that must go on differently
from what the model said is asked for again from there on, with the same seed: the engine draws a token from seed and
position alone, so what follows is what would have followed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal

from sparkpair.api.errors import ApiError, ClientGone, engine_failed, unavailable
from sparkpair.api.metrics import Metrics
from sparkpair.chat.decoder import ReplyDecoder
from sparkpair.chat.pieces import CallPiece, Piece
from sparkpair.chat.steering import Steering
from sparkpair.request import EngineError, FinishedEvent, GenerationRequest, Reply, ReplyStats
from sparkpair.sampling import prompt_seed


@dataclasses.dataclass(frozen=True, slots=True)
class ReplyEnd:
    """The last piece of every reply that did not fail.

    `completion_tokens` counts every token up to the one that ended the reply, end marks included.
    `matched_stop` is the stop string that ended it, if one did.
    """

    finish_reason: Literal["stop", "length", "tool_calls"]
    completion_tokens: int
    reasoning_tokens: int
    matched_stop: str | None
    token_ids: tuple[int, ...]
    stats: ReplyStats


class Generation:
    """A reply that is being generated. Whoever ends it early calls `leave` or `shut_down`; both free the engine within
    a step.
    """

    def __init__(
        self,
        submit: Callable[[GenerationRequest], Reply],
        request: GenerationRequest,
        decoder: ReplyDecoder,
        steering: Steering | None,
        metrics: Metrics,
        remember: Callable[[Sequence[str], str], None],
    ) -> None:
        """Submits the request at once. `remember` is told the ids of a reply's calls and its reasoning. Raises
        EngineError when the engine does not take the request.
        """
        self._submit = submit
        self._request = request
        self._decoder = decoder
        self._steering = steering
        self._metrics = metrics
        self._remember = remember
        self.id = f"str_{secrets.token_hex(6)}"
        self._arrived = time.monotonic()
        self._first_token_s: float | None = None
        self._interruption: ApiError | ClientGone | None = None
        self._finished: list[FinishedEvent] = []
        self._calls: list[str] = []
        self._reasoning: list[str] = []
        self._out_of_tokens = False
        self.finished = False
        """Whether the engine is done with it; the client may still be reading."""
        self._begin = () if steering is None else steering.start[: request.max_new_tokens]
        self._reply: Reply | None = self._go_on(self._begin)

    @property
    def tokens_so_far(self) -> int:
        """Tokens of the reply that have arrived."""
        return self._decoder.completion_tokens

    @property
    def age_s(self) -> float:
        """Seconds since it was submitted."""
        return time.monotonic() - self._arrived

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._request.prompt_ids)

    @property
    def writing_call(self) -> bool:
        """Whether text is held back because it is, or may be, a call."""
        return self._decoder.writing_call

    def leave(self) -> None:
        """The client is gone."""
        if self._interruption is None:
            self._metrics.client_disconnections += 1
        self._interrupt(ClientGone())

    def shut_down(self) -> None:
        """The server stops."""
        self._interrupt(unavailable("the server is stopping"))

    def cancel(self) -> None:
        """Free the engine; idempotent."""
        if self._reply is not None:
            self._reply.cancel()

    def _interrupt(self, error: ApiError | ClientGone) -> None:
        self._interruption = self._interruption or error
        self.cancel()

    async def pieces(self) -> AsyncGenerator[Piece | ReplyEnd]:
        """The reply as it becomes certain, then its end. Raises ApiError, or ClientGone after `leave`."""
        try:
            for piece in self._noted(self._decoder.feed(self._begin)):
                yield piece
            while self._reply is not None:
                async with contextlib.aclosing(self._events(self._reply)) as stage:
                    async for piece in stage:
                        yield piece
        except EngineError as error:
            raise self._interruption or engine_failed(str(error)) from error
        finally:
            self.cancel()
        if self._interruption is not None:
            raise self._interruption
        limited = self._out_of_tokens or self._finished[-1].reason == "length"
        for piece in self._noted(self._decoder.finish(out_of_tokens=limited)):
            yield piece
        yield self._end(limited and self._decoder.matched_stop is None)

    async def _events(self, reply: Reply) -> AsyncGenerator[Piece]:
        """Read one submission to its end; then there is the next, or none."""
        decoder = self._decoder
        put_in: tuple[int, ...] = ()
        finished: FinishedEvent | None = None
        async for event in reply.events():
            if isinstance(event, FinishedEvent):
                finished = event
                self.finished = not put_in
                continue
            if self._first_token_s is None:
                self._first_token_s = time.monotonic() - self._arrived
            token_ids: Sequence[int] = () if put_in else event.token_ids
            if self._steering is not None and token_ids:
                token_ids, put_in = self._steering.follow(token_ids)
            for piece in self._noted(decoder.feed(token_ids)):
                yield piece
            if put_in or decoder.matched_stop is not None:
                reply.cancel()
        stopped_here = bool(put_in) or decoder.matched_stop is not None
        if self._interruption is None and (finished is None or (finished.reason == "cancelled" and not stopped_here)):
            raise EngineError("the engine ended the reply without a reason")
        if finished is not None:
            self._finished.append(finished)
        self._reply = None
        if put_in and self._interruption is None and decoder.matched_stop is None:
            put_in = put_in[: self._request.max_new_tokens - decoder.completion_tokens]
            for piece in self._noted(decoder.feed(put_in)):
                yield piece
            if decoder.matched_stop is None:
                self._reply = self._go_on(tuple(decoder.token_ids))

    def _go_on(self, said: tuple[int, ...]) -> Reply | None:
        """Have the engine go on behind what was said so far; None when the reply may not have more tokens."""
        asked = self._request
        if not said:
            return self._submit(asked)
        self._out_of_tokens = len(said) >= asked.max_new_tokens
        if self._out_of_tokens:
            self.finished = True
            return None
        seed = prompt_seed(asked.prompt_ids) if asked.sampling.seed is None else asked.sampling.seed
        return self._submit(
            dataclasses.replace(
                asked,
                prompt_ids=asked.prompt_ids + said,
                max_new_tokens=asked.max_new_tokens - len(said),
                min_new_tokens=max(asked.min_new_tokens - len(said), 0),
                sampling=dataclasses.replace(asked.sampling, seed=seed),
            )
        )

    def _noted(self, pieces: list[Piece]) -> list[Piece]:
        """Keep in mind what a later request may lack."""
        for piece in pieces:
            if isinstance(piece, CallPiece):
                self._calls.append(piece.id)
            elif piece.channel == "reasoning":
                self._reasoning.append(piece.text)
        return pieces

    def _end(self, limited: bool) -> ReplyEnd:
        decoder = self._decoder
        stats = self._stats()
        self._metrics.observe(time.monotonic() - self._arrived, self._first_token_s, stats)
        if self._calls:
            self._remember(self._calls, "".join(self._reasoning))
        reason: Literal["stop", "length", "tool_calls"] = "length" if limited else "stop"
        return ReplyEnd(
            finish_reason="tool_calls" if self._calls and not decoder.cut_call else reason,
            completion_tokens=decoder.completion_tokens,
            reasoning_tokens=decoder.reasoning_tokens,
            matched_stop=decoder.matched_stop,
            token_ids=tuple(decoder.token_ids),
            stats=stats,
        )

    def _stats(self) -> ReplyStats:
        """The figures of all submissions as those of one."""
        stages = [finished.stats for finished in self._finished]
        if not stages:
            return ReplyStats(len(self._request.prompt_ids), 0, 0, 0.0, 0.0, 0.0, ())
        return dataclasses.replace(
            stages[-1],
            prompt_tokens=len(self._request.prompt_ids),
            cached_tokens=stages[0].cached_tokens,
            completion_tokens=self._decoder.completion_tokens,
            prefill_s=sum(stats.prefill_s for stats in stages),
            decode_s=sum(stats.decode_s for stats in stages),
            time_to_first_token_s=stages[0].time_to_first_token_s,
        )
