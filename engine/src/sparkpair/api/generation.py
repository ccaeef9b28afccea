# SPDX-License-Identifier: Apache-2.0
"""One reply of the engine, seen as one stream of pieces that ends with the reply's figures.

Streamed and unstreamed replies read the same stream, so that they cannot differ.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Literal

from sparkpair.api.errors import ApiError, ClientGone, engine_failed, unavailable
from sparkpair.api.metrics import Metrics
from sparkpair.chat.decoder import ReplyDecoder
from sparkpair.chat.pieces import CallPiece, Piece, text_of
from sparkpair.request import EngineError, FinishedEvent, GenerationRequest, Reply, ReplyStats

Check = Callable[[str], Awaitable[None]]
"""Looks at a finished answer; raises ApiError when it is not what was asked for."""


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
        metrics: Metrics,
        remember: Callable[[Sequence[str], str], None],
        check: Check | None = None,
    ) -> None:
        """Submits the request at once. `remember` is told the ids of a reply's calls and its reasoning; `check` is
        asked about an answer that has come to its end. Raises EngineError when the engine does not take the request.
        """
        self._request = request
        self._decoder = decoder
        self._metrics = metrics
        self._remember = remember
        self._check = check
        self.id = f"str_{secrets.token_hex(6)}"
        self._arrived = time.monotonic()
        self._first_token_s: float | None = None
        self._interruption: ApiError | ClientGone | None = None
        self._calls: list[str] = []
        self._reasoning: list[str] = []
        self._answer: list[Piece] = []
        self.finished = False
        """Whether the engine is done with it; the client may still be reading."""
        self._reply = submit(request)

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
        self._reply.cancel()

    def _interrupt(self, error: ApiError | ClientGone) -> None:
        self._interruption = self._interruption or error
        self.cancel()

    async def pieces(self) -> AsyncGenerator[Piece | ReplyEnd]:
        """The reply as it becomes certain, then its end. Raises ApiError, or ClientGone after `leave`."""
        decoder = self._decoder
        finished: FinishedEvent | None = None
        try:
            async for event in self._reply.events():
                if isinstance(event, FinishedEvent):
                    finished = event
                    self.finished = True
                    continue
                if self._first_token_s is None:
                    self._first_token_s = time.monotonic() - self._arrived
                for piece in self._noted(decoder.feed(event.token_ids)):
                    yield piece
                if decoder.matched_stop is not None:
                    self._reply.cancel()
        except EngineError as error:
            raise self._interruption or engine_failed(str(error)) from error
        finally:
            self.cancel()
        if self._interruption is not None:
            raise self._interruption
        if finished is None or (finished.reason == "cancelled" and decoder.matched_stop is None):
            raise engine_failed("the engine ended the reply without a reason")
        limited = finished.reason == "length"
        for piece in self._noted(decoder.finish(out_of_tokens=limited)):
            yield piece
        if self._check is not None and finished.reason == "stop" and decoder.matched_stop is None:
            await self._check(text_of(self._answer))
        yield self._end(limited and decoder.matched_stop is None, finished.stats)

    def _noted(self, pieces: list[Piece]) -> list[Piece]:
        """Keep in mind what a later request may lack."""
        for piece in pieces:
            if isinstance(piece, CallPiece):
                self._calls.append(piece.id)
            elif piece.channel == "reasoning":
                self._reasoning.append(piece.text)
            elif self._check is not None:
                self._answer.append(piece)
        return pieces

    def _end(self, limited: bool, stats: ReplyStats) -> ReplyEnd:
        decoder = self._decoder
        stats = dataclasses.replace(stats, completion_tokens=decoder.completion_tokens)
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
