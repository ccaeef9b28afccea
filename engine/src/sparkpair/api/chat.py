# SPDX-License-Identifier: Apache-2.0
"""POST /chat/completions, in OpenAI's words."""

from __future__ import annotations

import secrets
import time
from json.encoder import encode_basestring
from typing import Any

from fastapi import APIRouter, Request, Response

from sparkpair.api.body import off_loop, read_fields
from sparkpair.api.disconnect import attended
from sparkpair.api.errors import ApiError, error_body
from sparkpair.api.generation import ReplyEnd
from sparkpair.api.params import ReplyParams, chat_params
from sparkpair.api.replies import GenerationResponse, dump, statistics, usage
from sparkpair.api.serving import Serving
from sparkpair.api.sse import DONE, encode_event
from sparkpair.chat.pieces import CallPiece, Piece, text_of
from sparkpair.chat.reasoning import Channel

router = APIRouter()

KEYS: dict[Channel, str] = {"reasoning": "reasoning_content", "content": "content"}


class ChatDialect:
    """One reply as `chat.completion` or as a stream of `chat.completion.chunk`."""

    def __init__(self, params: ReplyParams) -> None:
        self._params = params
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._calls = 0
        # A chunk of text differs from the next only in the text: the rest is encoded once.
        before = dump({**self._head("chat.completion.chunk"), "choices": 0})[:-2]
        self._before = f'data: {before}[{{"index":0,"delta":'
        self._after = ',"finish_reason":null}]}\n\n'
        self._texts = {channel: f'{self._before}{{"{key}":' for channel, key in KEYS.items()}
        self._after_text = f"}}{self._after}"

    def opening(self) -> bytes:
        """The role, once."""
        return self._delta('{"role":"assistant"}')

    def piece(self, piece: Piece) -> bytes:
        """Some reasoning, some of the answer, or a whole call."""
        if isinstance(piece, CallPiece):
            self._calls += 1
            return self._delta(dump({"tool_calls": [{"index": self._calls - 1, **_call(piece)}]}))
        return f"{self._texts[piece.channel]}{encode_basestring(piece.text)}{self._after_text}".encode()

    def waiting(self) -> bytes:
        """An empty delta."""
        return self._delta("{}")

    def closing(self, end: ReplyEnd) -> bytes:
        """An empty delta with the reason; usage there or, when asked for, in a chunk of its own."""
        chunk = {
            **self._head("chat.completion.chunk"),
            "choices": [{"index": 0, "delta": {}, "finish_reason": end.finish_reason}],
            "sparkpair": statistics(end, self._params.return_token_ids),
        }
        counts = {"usage": usage(end)}
        if not self._params.include_usage:
            return encode_event(dump({**chunk, **counts})) + DONE
        last = {**self._head("chat.completion.chunk"), "choices": [], **counts}
        return encode_event(dump(chunk)) + encode_event(dump(last)) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error event, then the end."""
        return encode_event(dump(error_body(error))) + DONE

    def whole(self, pieces: list[Piece], end: ReplyEnd) -> dict[str, Any]:
        """The reply unstreamed."""
        content, reasoning = text_of(pieces), text_of(pieces, "reasoning")
        calls = [_call(piece) for piece in pieces if isinstance(piece, CallPiece)]
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.finish_reason}
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage(end),
            "sparkpair": statistics(end, self._params.return_token_ids),
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._params.model}

    def _delta(self, delta: str) -> bytes:
        return f"{self._before}{delta}{self._after}".encode()


def _call(piece: CallPiece) -> dict[str, Any]:
    return {"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": piece.arguments}}


@router.post("/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Continue a conversation."""
    serving: Serving = request.app.state.serving
    fields = await read_fields(request)
    params = await off_loop(fields.body_bytes, lambda: chat_params(fields, serving.options, serving.checkpoint))
    serving.notices.unknown("chat/completions", fields)
    work = await attended(request.receive, serving.chat_work(params))
    return GenerationResponse(serving, work, ChatDialect(params))
