# SPDX-License-Identifier: Apache-2.0
"""Runs one piece of work and tells its reply in the words of a dialect, streamed or whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sparkpair.api.disconnect import watching
from sparkpair.api.errors import ApiError, ClientGone
from sparkpair.api.generation import Generation, ReplyEnd
from sparkpair.api.serving import Serving, Work
from sparkpair.api.sse import COMMENT, EventWriter
from sparkpair.chat.pieces import Piece


class Dialect(Protocol):
    """How one route words a reply. The bytes are whole events of a stream."""

    def opening(self) -> bytes:
        """What a stream says before the first token."""

    def piece(self, piece: Piece) -> bytes:
        """Some text, or a call."""

    def waiting(self) -> bytes:
        """What shows that a call is being written, of which nothing can be told yet."""

    def closing(self, end: ReplyEnd) -> bytes:
        """The end of a reply, and of the stream."""

    def failure(self, error: ApiError) -> bytes:
        """The end of a stream whose reply failed."""

    def whole(self, pieces: list[Piece], end: ReplyEnd) -> dict[str, Any]:
        """The same reply in one object."""


class GenerationResponse(Response):
    """Submits its work when it is sent, so that a refusal by the engine is still an error status."""

    def __init__(self, serving: Serving, work: Work, dialect: Dialect) -> None:
        super().__init__()
        self._serving = serving
        self._work = work
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that leaves ends the work within a step. Raises ApiError only before anything
        was sent.
        """
        with self._serving.generation(self._work) as generation, contextlib.suppress(ClientGone):
            if self._work.params.stream:
                # In a task of its own: here every token would have to go through all that is around this.
                await asyncio.create_task(self._stream(generation, receive, EventWriter(send, scope)))
                return
            async with watching(receive, generation.leave):
                response = JSONResponse(await self._fold(generation))
                await response(scope, receive, send)

    async def _stream(self, generation: Generation, receive: Receive, writer: EventWriter) -> None:
        dialect = self._dialect
        options = self._serving.options
        async with watching(receive, generation.leave):
            await writer.start()
            if opening := dialect.opening():
                await writer.write(opening)
            async with (
                writer.every(options.keepalive_s, lambda: COMMENT),
                writer.every(options.call_beat_s, lambda: dialect.waiting() if generation.writing_call else b""),
                contextlib.aclosing(self._serving.stream_pieces(generation)) as pieces,
            ):
                try:
                    async for piece in pieces:
                        told = dialect.closing(piece) if isinstance(piece, ReplyEnd) else dialect.piece(piece)
                        await writer.write(told)
                except ApiError as error:
                    await writer.write(dialect.failure(error))
            await writer.end()

    async def _fold(self, generation: Generation) -> dict[str, Any]:
        told: list[Piece] = []
        async with contextlib.aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, ReplyEnd):
                    return self._dialect.whole(told, piece)
                told.append(piece)
        raise AssertionError("a reply ended without its end")


def usage(end: ReplyEnd) -> dict[str, Any]:
    """Token counts in OpenAI's words."""
    return {
        "prompt_tokens": end.stats.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "total_tokens": end.stats.prompt_tokens + end.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": end.stats.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
    }


def statistics(end: ReplyEnd, with_token_ids: bool) -> dict[str, Any]:
    """This engine's own block: times in seconds, drafts, and the step that each rank has executed."""
    stats = end.stats
    block: dict[str, Any] = {
        "prefill_s": round(stats.prefill_s, 6),
        "decode_s": round(stats.decode_s, 6),
        "time_to_first_token_s": round(stats.time_to_first_token_s, 6),
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "ranks": [{"rank": rank.rank, "step": rank.step} for rank in stats.ranks],
    }
    if with_token_ids:
        block["token_ids"] = list(end.token_ids)
    return block


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def dump(value: Any) -> str:
    """Compact JSON on one line, non-ASCII text as it is."""
    return _ENCODER.encode(value)
