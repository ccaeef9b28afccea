# SPDX-License-Identifier: Apache-2.0
"""One reply in the Responses dialect: a response object that grows item by item, and the events that tell how.

The unstreamed reply is the same object without the events, so the two cannot differ.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

from sparkpair.api.errors import ApiError
from sparkpair.api.generation import ReplyEnd
from sparkpair.api.replies import dump, statistics
from sparkpair.api.sse import COMMENT, encode_event
from sparkpair.chat.pieces import CallPiece, Piece
from sparkpair.chat.reasoning import Channel

Events = list[tuple[str, dict[str, Any]]]
Item = dict[str, Any]

TEXTS: dict[Channel, str] = {"reasoning": "reasoning_text", "content": "output_text"}


class ResponsesDialect:
    """Words one reply. `settings` are what the response object repeats of its request."""

    def __init__(
        self, settings: dict[str, Any], *, with_token_ids: bool, keep: Callable[[dict[str, Any]], None]
    ) -> None:
        """`keep` is given the finished response before the client is."""
        self._response: dict[str, Any] = {
            "id": _new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **settings,
        }
        self._with_token_ids = with_token_ids
        self._keep = keep
        self._number = 0
        self._item: Item | None = None
        self._channel: Channel | None = None
        self._text: list[str] = []
        self._before = self._place = self._after = ""

    def opening(self) -> bytes:
        """The response before it has anything in it."""
        response = {"response": self._response}
        return self._encode([("response.created", response), ("response.in_progress", response)])

    def piece(self, piece: Piece) -> bytes:
        """Text of the open item, or the next item."""
        if isinstance(piece, CallPiece) or self._channel != piece.channel:
            return self._encode(self._add(piece))
        # An event with text differs from the next only in its number and the text: the rest is encoded once.
        self._text.append(piece.text)
        told = f"{self._before}{self._number}{self._place}{encode_basestring(piece.text)}{self._after}"
        self._number += 1
        return told.encode()

    def waiting(self) -> bytes:
        """A comment: this dialect has no event that says nothing."""
        return COMMENT

    def closing(self, end: ReplyEnd) -> bytes:
        """The end of the open item and of the response."""
        events = self._finish(end)
        return self._encode([*events, (f"response.{self._response['status']}", {"response": self._response})])

    def failure(self, error: ApiError) -> bytes:
        """The end of a response whose reply failed."""
        self._response |= {"status": "failed", "error": {"code": error.code or error.type, "message": error.message}}
        return self._encode([("response.failed", {"response": self._response})])

    def whole(self, pieces: list[Piece], end: ReplyEnd) -> dict[str, Any]:
        """The response."""
        for piece in pieces:
            self._add(piece)
        self._finish(end)
        return self._response

    def _encode(self, events: Events) -> bytes:
        encoded = []
        for name, values in events:
            encoded.append(encode_event(dump({"type": name, "sequence_number": self._number, **values}), name))
            self._number += 1
        return b"".join(encoded)

    def _add(self, piece: Piece) -> Events:
        if isinstance(piece, CallPiece):
            return [*self._close("completed"), *self._call(piece)]
        events: Events = []
        if self._channel != piece.channel:
            events = [*self._close("completed"), *self._open(piece.channel)]
        self._text.append(piece.text)
        return [*events, (f"response.{TEXTS[piece.channel]}.delta", self._at_part(piece.channel, delta=piece.text))]

    def _finish(self, end: ReplyEnd) -> Events:
        whole = end.finish_reason != "length"
        events = self._close("completed" if whole else "incomplete")
        output = self._response["output"]
        if whole and all(item["type"] == "reasoning" for item in output):
            events += [*self._open("content"), *self._close("completed")]
        self._response |= {
            "status": "completed" if whole else "incomplete",
            "completed_at": int(time.time()) if whole else None,
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "usage": _usage(end),
            "sparkpair": statistics(end, self._with_token_ids),
        }
        self._keep(self._response)
        return events

    def _open(self, channel: Channel) -> Events:
        """Begin an item that has text."""
        if channel == "reasoning":
            item: Item = {"id": _new_id("rs"), "type": "reasoning", "summary": [], "content": []}
        else:
            item = {"id": _new_id("msg"), "type": "message", "role": "assistant", "content": []}
        self._item, self._channel, self._text = {**item, "status": "in_progress"}, channel, []
        name = f"response.{TEXTS[channel]}.delta"
        at = self._at_part(channel)
        behind = dump({"logprobs": at.pop("logprobs")})[1:] if "logprobs" in at else ""
        self._before = f'event: {name}\ndata: {{"type":"{name}","sequence_number":'
        self._place = f',{dump(at)[1:-1]},"delta":'
        self._after = f",{behind}\n\n" if behind else "}\n\n"
        return [
            ("response.output_item.added", {"output_index": len(self._response["output"]), "item": self._item}),
            ("response.content_part.added", self._at_part(part=_part(channel, ""))),
        ]

    def _close(self, status: str) -> Events:
        """End the open item, if there is one."""
        if self._item is None or self._channel is None:
            return []
        channel, text = self._channel, "".join(self._text)
        part = _part(channel, text)
        item = {**self._item, "content": [part], "status": status}
        events: Events = [
            (f"response.{TEXTS[channel]}.done", self._at_part(channel, text=text)),
            ("response.content_part.done", self._at_part(part=part)),
            ("response.output_item.done", {"output_index": len(self._response["output"]), "item": item}),
        ]
        self._response["output"].append(item)
        self._item = self._channel = None
        return events

    def _call(self, piece: CallPiece) -> Events:
        """An item of its own, begun, told and ended at once."""
        begun = {"id": _new_id("fc"), "type": "function_call", "call_id": piece.id, "name": piece.name}
        item = {**begun, "arguments": piece.arguments, "status": "completed"}
        index = len(self._response["output"])
        place = {"item_id": item["id"], "output_index": index}
        told = "response.function_call_arguments"
        self._response["output"].append(item)
        return [
            (
                "response.output_item.added",
                {"output_index": index, "item": {**item, "arguments": "", "status": "in_progress"}},
            ),
            (f"{told}.delta", {**place, "delta": piece.arguments}),
            (f"{told}.done", {**place, "name": piece.name, "arguments": piece.arguments}),
            ("response.output_item.done", {"output_index": index, "item": item}),
        ]

    def _at_part(self, channel: Channel = "reasoning", **values: Any) -> dict[str, Any]:
        """Where the open item's text is; answers have room for probabilities that are not offered."""
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self._response["output"]), "content_index": 0}
        return {**place, **values, **({"logprobs": []} if channel == "content" else {})}


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _part(channel: Channel, text: str) -> dict[str, Any]:
    if channel == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(end: ReplyEnd) -> dict[str, Any]:
    return {
        "input_tokens": end.stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.stats.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": end.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": end.stats.prompt_tokens + end.completion_tokens,
    }
