# SPDX-License-Identifier: Apache-2.0
"""The items of the Responses dialect, a client's and our own, as the messages of a chat.

A turn of the model is several items there (reasoning, message, calls) and one message here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkpair.api.errors import ApiError, invalid
from sparkpair.chat.media import PlacedPart

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def messages_of(items: Sequence[Any], where: str = "input") -> list[dict[str, Any]]:
    """Chat messages of a list of items; `where` names the list in errors. Raises ApiError 400."""
    builder = _Builder()
    for index, item in enumerate(items):
        builder.add(item, f"{where}[{index}]")
    return builder.finish()


class _Builder:
    """Collects the items of one turn of the model into one message."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] = {}

    def finish(self) -> list[dict[str, Any]]:
        """All messages."""
        if self._turn:
            self._messages.append({"role": "assistant", **self._turn})
            self._turn = {}
        return self._messages

    def add(self, item: Any, where: str) -> None:
        """Add the next item."""
        if not isinstance(item, dict):
            raise invalid(f"{where}: expected an object", "input")
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            output = content_of(item.get("output"), f"{where}.output")
            self.finish().append(
                {"role": "tool", "tool_call_id": _name(item, "call_id", where), "content": output}
            )  # fmt: skip
        else:
            raise invalid(f"{where}.type: {str(kind)[:64]!r} is not supported by this engine", "input")

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise invalid(f"{where}.role: expected one of {', '.join(ROLES)}", "input")
        content = content_of(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.finish().append({"role": role, "content": content})
            return
        if "content" in self._turn and "tool_calls" not in self._turn:
            self.finish()
        if isinstance(content, list):
            raise invalid(f"{where}.content: pictures are not supported in a reply", "input")
        self._turn["content"] = self._turn.get("content", "") + content

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        parts = item.get("content") or item.get("summary") or []
        text = content_of(parts, f"{where}.content")
        if not text and item.get("encrypted_content"):
            raise invalid(f"{where}.encrypted_content: reasoning that another service wrote cannot be read", "input")
        if "content" in self._turn or "tool_calls" in self._turn:
            self.finish()
        if text:
            self._turn["reasoning_content"] = self._turn.get("reasoning_content", "") + text

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        arguments = item.get("arguments")
        if not isinstance(arguments, str | None):
            raise invalid(f"{where}.arguments: expected a string", "input")
        function = {"name": _name(item, "name", where), "arguments": arguments}
        call = {"id": _name(item, "call_id", where), "type": "function", "function": function}
        self._turn.setdefault("tool_calls", []).append(call)


def content_of(content: Any, where: str) -> Any:
    """Text of a string or of parts; with pictures among them, the parts of a chat message."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise invalid(f"{where}: expected a string or a list of parts", "input")
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return parts if any(part["type"] != "text" for part in parts) else "".join(part["text"] for part in parts)


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS:
        return {"type": "text", "text": _string(part, "text", where)}
    if kind == "refusal":
        return {"type": "text", "text": _string(part, "refusal", where)}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {} if part.get("detail") is None else {"detail": part["detail"]}
        return PlacedPart({"type": "image_url", "image_url": {"url": part["image_url"], **detail}}, where)
    if kind == "input_video" and isinstance(part.get("video_url"), str):
        return PlacedPart({"type": "video_url", "video_url": {"url": part["video_url"]}}, where)
    raise _unknown_part(where)


def _string(values: Mapping[str, Any], name: str, where: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}: expected a string", "input")
    return value


def _name(values: Mapping[str, Any], name: str, where: str) -> str:
    value = _string(values, name, where)
    if not value:
        raise invalid(f"{where}.{name}: expected a non-empty string", "input")
    return value


def _unknown_part(where: str) -> ApiError:
    return invalid(
        f"{where}: expected a part of type input_text, output_text, refusal, input_image or input_video (a URL)",
        "input",
    )
