# SPDX-License-Identifier: Apache-2.0
"""A client's message list, checked and brought into the one form that templates are given.

Out come new dictionaries: `role`, `content` as text, and where they apply `reasoning_content`, `tool_calls`
(arguments as objects) and `tool_call_id`. The caller's data is never changed. Only where a user or a function shows a
picture or a clip, `content` is a list of parts, each a text or what `media` names.

History is taken as it comes. A past call whose arguments are not a JSON object is left out together with
its result, because a client that replays its history could otherwise never go on. Results are matched to calls
by id; where ids are missing, in order.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from sparkpair.chat.media import KINDS, BadPart, media_ref
from sparkpair.chat.reasoning import THINK_CLOSE, THINK_OPEN

logger = logging.getLogger(__name__)

ROLES = ("system", "developer", "user", "assistant", "tool")
UNKNOWN_PARTS = frozenset({"input_image", "image", "video", "input_audio", "audio_url", "file"})
MEDIA_ROLES = ("user", "tool")


class BadMessages(ValueError):
    """The message list is malformed or asks for what the engine does not have; the text names the place."""


def normalise_messages(messages: Any, *, vision: bool = False) -> list[dict[str, Any]]:
    """Check a request's `messages` and return them for the template. Raises BadMessages.

    Without `vision` a user's picture is refused; one that a function has returned is told of in its place, as a
    conversation could otherwise never go on.
    """
    if not isinstance(messages, list) or not messages:
        raise BadMessages("messages: expected a list with at least one message")
    checked = [_message(f"messages[{index}]", message, vision) for index, message in enumerate(messages)]
    _pair_results(checked)
    return _without_broken_calls(_merge_leading_system(checked))


def text_length(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters of all contents: a cheap measure of how long rendering will take."""
    return sum(_length(message["content"]) + len(message.get("reasoning_content", "")) for message in messages)


def _length(content: Any) -> int:
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


def _message(where: str, message: Any, vision: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadMessages(f"{where}: expected an object")
    role = message.get("role")
    if role not in ROLES:
        raise BadMessages(f"{where}.role: expected one of {', '.join(ROLES)}")
    checked: dict[str, Any] = {"role": "system" if role == "developer" else role}
    checked["content"] = _content(f"{where}.content", message.get("content"), role, vision)
    if role == "assistant":
        _assistant(where, message, checked)
    if role == "tool" and message.get("tool_call_id") is not None:
        if not isinstance(message["tool_call_id"], str):
            raise BadMessages(f"{where}.tool_call_id: expected a string")
        checked["tool_call_id"] = message["tool_call_id"]
    return checked


def _content(where: str, content: Any, role: str, vision: bool) -> str | list[dict[str, Any]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadMessages(f"{where}: expected a string, null or a list of parts")
    parts = [_part(f"{where}[{index}]", part, role, vision) for index, part in enumerate(content)]
    return parts if any("media" in part for part in parts) else "".join(part["text"] for part in parts)


def _part(where: str, part: Any, role: str, vision: bool) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise BadMessages(f"{where}: expected an object")
    kind = part.get("type")
    if isinstance(kind, str) and kind in KINDS:
        return _media(where, part, role, vision)
    if isinstance(kind, str) and kind in UNKNOWN_PARTS:
        raise BadMessages(f"{where}: parts of type {kind} are not supported by this engine")
    if kind != "text":
        raise BadMessages(f"{where}.type: expected text")
    if not isinstance(part.get("text"), str):
        raise BadMessages(f"{where}.text: expected a string")
    return {"type": "text", "text": part["text"]}


def _media(where: str, part: Mapping[str, Any], role: str, vision: bool) -> dict[str, Any]:
    try:
        ref = media_ref(part, where)
    except BadPart as error:
        raise BadMessages(str(error)) from None
    if role not in MEDIA_ROLES:
        raise BadMessages(f"{ref.where}: pictures and clips may only stand in user and tool messages")
    if vision:
        return {"type": "media", "media": ref}
    if role == "tool":
        return {"type": "text", "text": f"[{ref.kind} left out: this server cannot look at it]"}
    raise BadMessages(f"{ref.where}: this server has no vision, so it cannot look at a {ref.kind}")


def _assistant(where: str, message: Mapping[str, Any], checked: dict[str, Any]) -> None:
    """Add the reasoning and the calls of a past reply."""
    name = "reasoning" if message.get("reasoning_content") is None else "reasoning_content"
    reasoning = message.get(name)
    if reasoning is not None and not isinstance(reasoning, str):
        raise BadMessages(f"{where}.{name}: expected a string")
    if reasoning is None and THINK_CLOSE in checked["content"]:
        reasoning, checked["content"] = checked["content"].split(THINK_CLOSE, 1)
        reasoning = reasoning.rpartition(THINK_OPEN)[2]
    if reasoning is not None:
        checked["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise BadMessages(f"{where}.tool_calls: expected a list")
    if calls:
        checked["tool_calls"] = [_call(f"{where}.tool_calls[{index}]", call) for index, call in enumerate(calls)]


def _call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise BadMessages(f"{where}.function: expected an object with a name")
    if not isinstance(call.get("id"), str | None):
        raise BadMessages(f"{where}.id: expected a string")
    arguments = _arguments(function.get("arguments"))
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(arguments: Any) -> dict[str, Any] | None:
    """A call's arguments as an object; None when they are not one that can be written as JSON in UTF-8."""
    try:
        if isinstance(arguments, str):
            arguments = json.loads(arguments) if arguments.strip() else {}
        elif arguments is None:
            arguments = {}
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _pair_results(messages: list[dict[str, Any]]) -> None:
    """Give calls without an id one, and results without an id that of the first call that has no result yet."""
    waiting: deque[str] = deque()
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            calls = message.get("tool_calls", ())
            for number, call in enumerate(calls):
                call["id"] = call["id"] or f"call_{index}_{number}"
            answered = _answered(messages, index + 1) if calls else set()
            waiting = deque(call["id"] for call in calls if call["id"] not in answered)
        elif message["role"] == "tool" and not message.get("tool_call_id"):
            if not waiting:
                raise BadMessages(
                    f"messages[{index}].tool_call_id: expected the id of a call; none before it lacks a result"
                )
            message["tool_call_id"] = waiting.popleft()


def _answered(messages: Sequence[Mapping[str, Any]], index: int) -> set[str]:
    """The ids that the run of results from `index` on names."""
    ids = set()
    while index < len(messages) and messages[index]["role"] == "tool":
        ids.add(messages[index].get("tool_call_id") or "")
        index += 1
    return ids


def _merge_leading_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the system messages at the start by blank lines; later ones stay where they are."""
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    if count < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:count])
    return [{"role": "system", "content": text}, *messages[count:]]


def _without_broken_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    dropped: set[str] = set()
    for message in messages:
        if message["role"] == "tool" and dropped and message.get("tool_call_id") in dropped:
            continue
        if message["role"] == "assistant":
            calls = message.pop("tool_calls", [])
            whole = [call for call in calls if call["function"]["arguments"] is not None]
            dropped = {call["id"] for call in calls if call["function"]["arguments"] is None}
            if dropped:
                logger.warning("left %d past call(s) without valid arguments out of a prompt", len(dropped))
            if whole:
                message["tool_calls"] = whole
        kept.append(message)
    return kept
