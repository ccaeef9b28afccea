# SPDX-License-Identifier: Apache-2.0
"""POST /completions, in OpenAI's words: raw text or token ids, no template and no think block."""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter, Request, Response

from sparkpair.api.body import off_loop, read_fields
from sparkpair.api.disconnect import attended
from sparkpair.api.errors import ApiError, error_body
from sparkpair.api.generation import ReplyEnd
from sparkpair.api.params import ReplyParams, completion_params
from sparkpair.api.replies import GenerationResponse, dump, statistics, usage
from sparkpair.api.serving import Serving
from sparkpair.api.sse import DONE, encode_event
from sparkpair.chat.pieces import Piece, text_of

router = APIRouter()


class CompletionDialect:
    """One reply as `text_completion`, streamed in chunks of the same kind."""

    def __init__(self, params: ReplyParams) -> None:
        self._params = params
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def opening(self) -> bytes:
        """Nothing: there is no role to tell."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """Some text; without functions there are no calls."""
        return encode_event(dump(self._chunk(text_of([piece]), None)))

    def waiting(self) -> bytes:
        """Nothing: without functions no call is ever waited for."""
        return b""

    def closing(self, end: ReplyEnd) -> bytes:
        """An empty text with the reason; usage there or, when asked for, in a chunk of its own."""
        chunk = {**self._chunk("", end.finish_reason), "sparkpair": statistics(end, self._params.return_token_ids)}
        counts = {"usage": usage(end)}
        if not self._params.include_usage:
            return encode_event(dump({**chunk, **counts})) + DONE
        return encode_event(dump(chunk)) + encode_event(dump({**self._head(), "choices": [], **counts})) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error event, then the end."""
        return encode_event(dump(error_body(error))) + DONE

    def whole(self, pieces: list[Piece], end: ReplyEnd) -> dict[str, Any]:
        """The reply unstreamed."""
        return {
            **self._chunk(text_of(pieces), end.finish_reason),
            "usage": usage(end),
            "sparkpair": statistics(end, self._params.return_token_ids),
        }

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._id, "object": "text_completion", "created": self._created, "model": self._params.model
        }  # fmt: skip

    def _chunk(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head(), "choices": [choice]}


@router.post("/completions")
async def create_completion(request: Request) -> Response:
    """Continue a text."""
    serving: Serving = request.app.state.serving
    fields = await read_fields(request)
    params = await off_loop(fields.body_bytes, lambda: completion_params(fields, serving.options, serving.checkpoint))
    serving.notices.unknown("completions", fields)
    work = await attended(request.receive, serving.completion_work(params))
    return GenerationResponse(serving, work, CompletionDialect(params))
