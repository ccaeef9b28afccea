# SPDX-License-Identifier: Apache-2.0
"""A request of the Responses dialect, put as the chat request that asks for the same."""

from __future__ import annotations

from typing import Any

from sparkpair.api.errors import invalid, unsupported
from sparkpair.api.fields import Fields
from sparkpair.api.functions import check_function
from sparkpair.api.notices import Notices
from sparkpair.api.params import GRAMMARS
from sparkpair.api.response_items import messages_of

AS_CHAT = (
    "model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "min_tokens", "draft",
    "priority", "thinking_budget", "chat_template_kwargs", "return_token_ids", "parallel_tool_calls", "tool_choice",
    "n", "logprobs", "top_logprobs", *GRAMMARS,
)  # fmt: skip
"""Fields that mean what they mean on the chat route."""

CHAT_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
}
"""Fields of the chat request, and places in them, by the names that they have here."""

REFUSED = ("background", "conversation", "prompt", "context_management")
"""Fields that ask for what is not here; false, null and empty ones ask for nothing."""

IGNORED = (
    "user", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "client_metadata",
    "stream_options", "max_tool_calls",
)  # fmt: skip
"""Fields that change nothing here."""

INCLUDES = frozenset(
    {
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
    }
)
"""What a client may ask to see besides; there is none of it here, so it changes nothing."""

MOST_METADATA = 16
LONGEST_METADATA_KEY = 64
LONGEST_METADATA_VALUE = 512


def own_items(fields: Fields) -> list[Any]:
    """The items of `input`. Raises ApiError 400."""
    given = fields.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise invalid("input: expected a string or a list with at least one item", "input")
    return given


def chat_body(fields: Fields, earlier: list[Any], own: list[Any], notices: Notices) -> dict[str, Any]:
    """The body of the chat request; `earlier` are the items of the conversation so far. Raises ApiError 400."""
    _check(fields)
    instructions = fields.string("instructions")
    # The client's own items come first, so that what is wrong with them is told by their place in the request.
    messages_of(own)
    messages = messages_of([*earlier, *own])
    body: dict[str, Any] = {name: fields.get(name) for name in AS_CHAT}
    body["messages"] = [{"role": "system", "content": instructions}, *messages] if instructions else messages
    body["max_tokens"] = fields.get("max_output_tokens")
    body["reasoning_effort"] = fields.object("reasoning").get("effort")
    body["response_format"] = _response_format(fields)
    body["tools"] = _tools(fields.get("tools"), notices)
    return body


def _check(fields: Fields) -> None:
    """Refuse what cannot be done; take note of what changes nothing."""
    for name in REFUSED:
        if fields.get(name):
            raise unsupported(name)
    for name in IGNORED:
        fields.get(name)
    if fields.get("truncation") not in (None, "disabled"):
        raise invalid("truncation: only disabled is supported by this engine", "truncation")
    include = fields.get("include")
    if include is not None and not (
        isinstance(include, list) and all(isinstance(name, str) and name in INCLUDES for name in include)
    ):
        raise invalid(f"include: expected a list of {', '.join(sorted(INCLUDES))}", "include")
    metadata = fields.object("metadata")
    if len(metadata) > MOST_METADATA or not all(
        len(key) <= LONGEST_METADATA_KEY and isinstance(value, str) and len(value) <= LONGEST_METADATA_VALUE
        for key, value in metadata.items()
    ):
        raise invalid(
            f"metadata: expected at most {MOST_METADATA} pairs of text, keys up to {LONGEST_METADATA_KEY} and values up"
            f" to {LONGEST_METADATA_VALUE} characters",
            "metadata",
        )


def _response_format(fields: Fields) -> dict[str, Any] | None:
    form = Fields(fields.object("text"), "text.").object("format")
    if form.get("type") != "json_schema":
        return dict(form) or None
    return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}


def _tools(tools: Any, notices: Notices) -> list[Any] | None:
    """Functions in the chat route's form. Tools that the service would run itself are left out, as some clients always
    offer theirs.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise invalid("tools: expected a list", "tools")
    kept = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise invalid(f"tools[{index}]: expected an object with a type", "tools")
        if tool["type"] == "function":
            function = {key: tool[key] for key in tool if key != "type"}
            check_function(f"tools[{index}]", function)
            kept.append({"type": "function", "function": function})
        else:
            notices.ignored("responses", f"tools of type {tool['type']}")
    return kept
