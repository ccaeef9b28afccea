# SPDX-License-Identifier: Apache-2.0
"""The content blocks of the Messages dialect as the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkpair.api.errors import field_of, invalid
from sparkpair.chat.media import PlacedPart

ROLES = ("user", "assistant", "system")
BILLING = "x-anthropic-billing-header:"
"""How a line begins that some clients put first and change with every request: no prompt could ever be reused."""


def system_text(system: Any) -> str:
    """The text of `system`, a string or text blocks, without the line that changes every time. Raises ApiError 400."""
    if system is None:
        return ""
    if isinstance(system, str):
        return system.partition("\n")[2] if system.startswith(BILLING) else system
    if not isinstance(system, list):
        raise invalid("system: expected a string or a list of text blocks", "system")
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(system)]
    return "\n\n".join(texts[1:] if texts and texts[0].startswith(BILLING) else texts)


def messages_of(messages: Any) -> list[dict[str, Any]]:
    """Chat messages of a list of messages. Raises ApiError 400."""
    if not isinstance(messages, list) or not messages:
        raise invalid("messages: expected a list with at least one message", "messages")
    converted: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise invalid(f"{where}: expected an object", "messages")
        role = message.get("role")
        if role not in ROLES:
            raise invalid(f"{where}.role: expected one of {', '.join(ROLES)}", "messages")
        blocks = _blocks(message.get("content"), f"{where}.content")
        if role == "assistant":
            converted.append(_assistant(blocks))
        elif role == "user":
            converted += _user(blocks)
        else:
            text = "\n\n".join(_text(block, where) for where, block in blocks)
            converted.append({"role": "system", "content": text})
    return converted


Blocks = list[tuple[str, dict[str, Any]]]
"""Blocks with their places."""


def _blocks(content: Any, where: str) -> Blocks:
    if isinstance(content, str):
        return [(where, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise invalid(f"{where}: expected a string or a list of blocks", "messages")
    return [(f"{where}[{index}]", block) for index, block in enumerate(content)]


def _user(blocks: Blocks) -> list[dict[str, Any]]:
    """Results of calls stand before everything else of their turn."""
    results = [_result(block, where) for where, block in blocks if block.get("type") == "tool_result"]
    rest = [_part(block, where) for where, block in blocks if block.get("type") != "tool_result"]
    return [*results, *([{"role": "user", "content": _joined(rest)}] if rest or not results else [])]


def _result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    content = block.get("content")
    parts = [] if content is None else [_part(part, place) for place, part in _blocks(content, f"{where}.content")]
    if block.get("is_error"):
        parts = [{"type": "text", "text": "Error: "}, *parts]
    return {"role": "tool", "tool_call_id": _name(block, "tool_use_id", where), "content": _joined(parts)}


def _assistant(blocks: Blocks) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for where, block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            message["reasoning_content"] = message.get("reasoning_content", "") + _string(block, "thinking", where)
        elif kind == "tool_use":
            arguments = block.get("input")
            if not isinstance(arguments, dict):
                raise invalid(f"{where}.input: expected an object", "messages")
            function = {"name": _name(block, "name", where), "arguments": arguments}
            call = {"id": _name(block, "id", where), "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        else:
            message["content"] += _text(block, where)
    return message


def _joined(parts: list[dict[str, Any]]) -> Any:
    """The text of parts; with pictures among them, the parts themselves."""
    return parts if any(part["type"] != "text" for part in parts) else "".join(part["text"] for part in parts)


def _part(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    if block.get("type") != "image":
        return {"type": "text", "text": _text(block, where)}
    source = block.get("source")
    if not isinstance(source, dict):
        raise invalid(f"{where}.source: expected an object", "messages")
    kind = source.get("type")
    if kind not in ("base64", "url"):
        raise invalid(f"{where}.source: expected type base64 or url", "messages")
    if kind == "base64":
        _string(source, "media_type", where)
    url = _string(source, "data" if kind == "base64" else "url", where)
    return PlacedPart({"type": "image_url", "image_url": {"url": url}}, where, base64=kind == "base64")


def _text(block: Any, where: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind != "text":
        raise invalid(f"{where}: blocks of type {str(kind)[:64]!r} are not supported here", field_of(where))
    return _string(block, "text", where)


def _string(values: Mapping[str, Any], name: str, where: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}: expected a string", field_of(where))
    return value


def _name(values: Mapping[str, Any], name: str, where: str) -> str:
    value = _string(values, name, where)
    if not value:
        raise invalid(f"{where}.{name}: expected a non-empty string", field_of(where))
    return value
