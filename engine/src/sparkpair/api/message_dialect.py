# SPDX-License-Identifier: Apache-2.0
"""One reply in the Messages dialect: a message that grows block by block, and the events that tell how.

The unstreamed reply is the same message without the events, so the two cannot differ.
"""

from __future__ import annotations

import json
import secrets
from json.encoder import encode_basestring
from typing import Any

from sparkpair.api.errors import ApiError, messages_error_body
from sparkpair.api.generation import ReplyEnd
from sparkpair.api.replies import dump, statistics
from sparkpair.api.sse import encode_event
from sparkpair.chat.pieces import CallPiece, Piece
from sparkpair.chat.reasoning import Channel

Events = list[dict[str, Any]]

KEYS: dict[Channel, str] = {"reasoning": "thinking", "content": "text"}
"""The type of a block, which is also the name of its text."""

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesDialect:
    """Words one reply."""

    def __init__(self, model: str, prompt_tokens: int, *, request_id: str | None, with_token_ids: bool) -> None:
        """`prompt_tokens` is told at the beginning, when it is not known yet how many of them are kept ones."""
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _counts(prompt_tokens, 0, 0),
        }
        self._request_id = request_id
        self._with_token_ids = with_token_ids
        self._channel: Channel | None = None
        self._text: list[str] = []
        self._before = ""

    def opening(self) -> bytes:
        """The message before it has anything in it."""
        return _encode([{"type": "message_start", "message": self._message}])

    def piece(self, piece: Piece) -> bytes:
        """Text of the open block, or the next block."""
        if isinstance(piece, CallPiece) or self._channel != piece.channel:
            return _encode(self._add(piece))
        # An event with text differs from the next only in the text: the rest is encoded once.
        self._text.append(piece.text)
        return f"{self._before}{encode_basestring(piece.text)}}}}}\n\n".encode()

    def waiting(self) -> bytes:
        """The event that says nothing."""
        return _encode([{"type": "ping"}])

    def closing(self, end: ReplyEnd) -> bytes:
        """The end of the open block and of the message."""
        events = self._finish(end)
        message = self._message
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        told = {"type": "message_delta", "delta": delta, "usage": message["usage"], "sparkpair": message["sparkpair"]}
        return _encode([*events, told, {"type": "message_stop"}])

    def failure(self, error: ApiError) -> bytes:
        """An error event; nothing follows it."""
        return _encode([messages_error_body(error, self._request_id)])

    def whole(self, pieces: list[Piece], end: ReplyEnd) -> dict[str, Any]:
        """The message."""
        for piece in pieces:
            self._add(piece)
        self._finish(end)
        return self._message

    def _add(self, piece: Piece) -> Events:
        if isinstance(piece, CallPiece):
            return [*self._close(), *self._call(piece)]
        events: Events = []
        kind = KEYS[piece.channel]
        if self._channel != piece.channel:
            events = [*self._close(), self._start(_block(piece.channel, ""))]
            self._channel, self._text = piece.channel, []
            self._before = _encode([self._delta({"type": f"{kind}_delta", kind: ""})]).decode().removesuffix('""}}\n\n')
        self._text.append(piece.text)
        return [*events, self._delta({"type": f"{kind}_delta", kind: piece.text})]

    def _finish(self, end: ReplyEnd) -> Events:
        events = self._close()
        stopped_by = end.matched_stop if end.finish_reason == "stop" else None
        self._message |= {
            "stop_reason": STOP_REASONS[end.finish_reason] if stopped_by is None else "stop_sequence",
            "stop_sequence": stopped_by,
            "usage": {
                **_counts(end.stats.prompt_tokens, end.stats.cached_tokens, end.completion_tokens),
                "output_tokens_details": {"thinking_tokens": end.reasoning_tokens},
            },
            "sparkpair": statistics(end, self._with_token_ids),
        }
        return events

    def _close(self) -> Events:
        """End the open block, if there is one; thinking ends with its signature, which is empty here."""
        if self._channel is None:
            return []
        events = [self._delta({"type": "signature_delta", "signature": ""})] if self._channel == "reasoning" else []
        events.append({"type": "content_block_stop", "index": len(self._message["content"])})
        self._message["content"].append(_block(self._channel, "".join(self._text)))
        self._channel = None
        return events

    def _call(self, piece: CallPiece) -> Events:
        block = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": json.loads(piece.arguments)}
        events = [
            self._start({**block, "input": {}}),
            self._delta({"type": "input_json_delta", "partial_json": piece.arguments}),
            {"type": "content_block_stop", "index": len(self._message["content"])},
        ]
        self._message["content"].append(block)
        return events

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_start", "index": len(self._message["content"]), "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._message["content"]), "delta": delta}


def _encode(events: Events) -> bytes:
    return b"".join(encode_event(dump(event), event["type"]) for event in events)


def _block(channel: Channel, text: str) -> dict[str, Any]:
    if channel == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _counts(prompt: int, cached: int, completion: int) -> dict[str, Any]:
    """Kept prompt tokens are counted apart from the others, as in this dialect."""
    return {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": completion,
    }
