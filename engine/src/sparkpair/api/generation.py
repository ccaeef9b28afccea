# SPDX-License-Identifier: Apache-2.0
"""One request at the engine, seen as one stream of reply pieces that ends with the reply's figures.

Streamed and unstreamed replies read the same stream, so that they cannot differ.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator
from typing import Literal

from sparkpair.api.errors import ApiError, ClientGone, engine_failed, unavailable
from sparkpair.api.metrics import Metrics
from sparkpair.chat.decoder import ReplyDecoder, TextPiece
from sparkpair.request import EngineError, FinishedEvent, Reply, ReplyStats


@dataclasses.dataclass(frozen=True, slots=True)
class ReplyEnd:
    """The last piece of every reply that did not fail.

    `completion_tokens` counts every token up to the one that ended the reply, end marks included.
    `matched_stop` is the stop string that ended it, if one did.
    """

    finish_reason: Literal["stop", "length"]
    completion_tokens: int
    reasoning_tokens: int
    matched_stop: str | None
    token_ids: tuple[int, ...]
    stats: ReplyStats


class Generation:
    """A submitted request. Whoever ends it early calls `leave` or `shut_down`; both free the engine within
    a step.
    """

    def __init__(self, reply: Reply, decoder: ReplyDecoder, metrics: Metrics) -> None:
        self._reply = reply
        self._decoder = decoder
        self._metrics = metrics
        self._arrived = time.monotonic()
        self._first_token_s: float | None = None
        self._interruption: ApiError | ClientGone | None = None
        self.finished = False
        """Whether the engine is done with it; the client may still be reading."""

    @property
    def tokens_so_far(self) -> int:
        """Tokens of the reply that have arrived."""
        return self._decoder.completion_tokens

    def leave(self) -> None:
        """The client is gone."""
        if self._interruption is None:
            self._metrics.client_disconnections += 1
        self._interrupt(ClientGone())

    def shut_down(self) -> None:
        """The server stops."""
        self._interrupt(unavailable("the server is stopping"))

    def _interrupt(self, error: ApiError | ClientGone) -> None:
        self._interruption = self._interruption or error
        self._reply.cancel()

    async def pieces(self) -> AsyncGenerator[TextPiece | ReplyEnd]:
        """The reply's text as it becomes certain, then its end. Raises ApiError, or ClientGone after
        `leave`.
        """
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
                for piece in decoder.feed(event.token_ids):
                    yield piece
                if decoder.matched_stop is not None:
                    self._reply.cancel()
        except EngineError as error:
            raise self._interruption or engine_failed(str(error)) from error
        finally:
            self._reply.cancel()
        if self._interruption is not None:
            raise self._interruption
        for piece in decoder.finish():
            yield piece
        yield self._end(finished)

    def _end(self, finished: FinishedEvent | None) -> ReplyEnd:
        decoder = self._decoder
        stopped_here = decoder.matched_stop is not None
        if finished is None or (finished.reason == "cancelled" and not stopped_here):
            raise engine_failed("the engine ended the reply without a reason")
        self._metrics.observe(time.monotonic() - self._arrived, self._first_token_s, finished.stats)
        return ReplyEnd(
            finish_reason="length" if finished.reason == "length" and not stopped_here else "stop",
            completion_tokens=decoder.completion_tokens,
            reasoning_tokens=decoder.reasoning_tokens,
            matched_stop=decoder.matched_stop,
            token_ids=tuple(decoder.token_ids),
            stats=finished.stats,
        )
