# SPDX-License-Identifier: Apache-2.0
"""A request of the Messages dialect, put as the chat request that asks for the same."""

from __future__ import annotations

from typing import Any

from sparkpair.api.errors import invalid, unsupported
from sparkpair.api.fields import Fields
from sparkpair.api.functions import check_function
from sparkpair.api.message_blocks import messages_of, system_text
from sparkpair.api.notices import Notices

AS_CHAT = (
    "model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "ignore_eos", "draft",
    "priority", "return_token_ids",
)  # fmt: skip
"""Fields that mean what they mean on the chat route."""

CHAT_NAMES = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
}
"""Fields of the chat request, and places in them, by the names that they have here."""

IGNORED = ("metadata", "cache_control", "speed", "diagnostics", "inference_geo", "betas")
"""Fields that change nothing here."""

CHOICES = {"auto": "auto", "none": "none", "any": "required"}


def chat_body(fields: Fields, notices: Notices, *, counting: bool) -> dict[str, Any]:
    """The body of the chat request; `counting`: only the prompt matters. Raises ApiError 400."""
    _check(fields)
    limit = fields.integer("max_tokens")
    if not (counting and limit is None) and (limit is None or limit < 1):
        raise invalid("max_tokens: expected a whole number above 0", "max_tokens")
    messages = messages_of(fields.get("messages"))
    system = system_text(fields.get("system"))
    thinking, budget = _thinking(fields, limit)
    choice, parallel = _tool_choice(fields)
    output = Fields(fields.object("output_config"), "output_config.")
    form = output.object("format")
    return {
        **{name: fields.get(name) for name in AS_CHAT},
        "messages": [{"role": "system", "content": system}, *messages] if system else messages,
        "max_tokens": limit,
        "stop": _stop_sequences(fields),
        "tools": _tools(fields.get("tools"), notices),
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "reasoning_effort": output.string("effort"),
        "chat_template_kwargs": {"enable_thinking": thinking},
        "thinking_budget": budget,
        "response_format": {"type": form.get("type"), "json_schema": {"schema": form.get("schema")}} if form else None,
    }


def _check(fields: Fields) -> None:
    """Refuse what cannot be done; take note of what changes nothing."""
    if not fields.string("model"):
        raise invalid("model: expected the name of a model", "model")
    for name in ("container", "mcp_servers"):
        if fields.get(name):
            raise unsupported(name)
    if fields.get("service_tier") not in (None, "auto"):
        raise invalid("service_tier: only auto is supported by this engine", "service_tier")
    edits = fields.object("context_management").get("edits") or []
    kept = {"type": "clear_thinking_20251015", "keep": "all"}
    if not isinstance(edits, list) or any(edit != kept for edit in edits):
        raise invalid("context_management: only keeping all thinking is supported by this engine", "context_management")
    for name in IGNORED:
        fields.get(name)


def _thinking(fields: Fields, limit: int | None) -> tuple[bool, int | None]:
    """The switch, off when nothing is said, and the budget."""
    thinking = Fields(fields.object("thinking"), "thinking.")
    kind = thinking.get("type")
    if kind not in (None, "disabled", "enabled", "adaptive") or (kind is None and fields.object("thinking")):
        raise invalid("thinking.type: expected disabled, enabled or adaptive", "thinking")
    budget = thinking.integer("budget_tokens") if kind == "enabled" else None
    if budget is not None and (budget < 1 or (limit is not None and budget >= limit)):
        raise invalid("thinking.budget_tokens: expected more than 0 and less than max_tokens", "thinking")
    return kind in ("enabled", "adaptive"), budget


def _stop_sequences(fields: Fields) -> list[Any] | None:
    stops = fields.get("stop_sequences")
    if not isinstance(stops, list | None):
        raise invalid("stop_sequences: expected a list of strings", "stop_sequences")
    return stops


def _tools(tools: Any, notices: Notices) -> list[dict[str, Any]] | None:
    """Functions in the chat route's form. Tools that the service would run itself are left out."""
    if not isinstance(tools, list | None):
        raise invalid("tools: expected a list", "tools")
    kept = []
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, dict):
            raise invalid(f"tools[{index}]: expected an object", "tools")
        if tool.get("type") not in (None, "custom"):
            notices.ignored("messages", f"tools of type {tool['type']!s}")
            continue
        if not isinstance(tool.get("input_schema"), dict):
            raise invalid(f"tools[{index}].input_schema: expected an object", "tools")
        described = {key: tool[key] for key in ("name", "description") if tool.get(key) is not None}
        check_function(f"tools[{index}]", described)
        kept.append({"type": "function", "function": {**described, "parameters": tool["input_schema"]}})
    return kept


def _tool_choice(fields: Fields) -> tuple[Any, bool]:
    """The choice in the chat route's form, and whether several calls are welcome."""
    choice = Fields(fields.object("tool_choice"), "tool_choice.")
    kind = choice.get("type")
    parallel = not choice.boolean("disable_parallel_tool_use", False)
    if kind is None and not fields.object("tool_choice"):
        return None, parallel
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.string("name")}}, parallel
    if not isinstance(kind, str) or kind not in CHOICES:
        raise invalid("tool_choice.type: expected auto, none, any or tool", "tool_choice")
    return CHOICES[kind], parallel
