# SPDX-License-Identifier: Apache-2.0
"""The functions that a request offers to the model, and what it asks about calling them.

Enforced: `none` shows the model no functions; `required` and a named function make the answer begin with a call of one
of those on offer. The arguments are the model's own, and what is then no valid call comes back as text.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sparkpair.api.errors import invalid, unsupported
from sparkpair.api.fields import Fields
from sparkpair.chat.call_block import CALL_MARKERS, LONGEST_NAME, OPEN, Function
from sparkpair.chat.tokenizer import TextTokenizer

MOST_FUNCTIONS = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionParams:
    """`definitions` are what the template shows; `must_call`: the answer begins with a call; `parallel`: it may have
    more than one.
    """

    definitions: tuple[dict[str, Any], ...] = ()
    functions: tuple[Function, ...] = ()
    must_call: bool = False
    parallel: bool = True

    def opening(self, tokenizer: TextTokenizer) -> tuple[int, ...]:
        """The ids that a forced call begins with: with one function on offer, its name too."""
        if not self.must_call:
            return ()
        name = tokenizer.encode_text(self.functions[0].name) if len(self.functions) == 1 else []
        return (tokenizer.marker_ids[OPEN], *name)

    @property
    def names(self) -> tuple[str, ...]:
        """What may follow that opening, where there are several functions to choose from."""
        several = self.must_call and len(self.functions) > 1
        return tuple(function.name for function in self.functions) if several else ()


def function_params(fields: Fields, tokenizer: TextTokenizer) -> FunctionParams:
    """Check `tools`, `tool_choice` and `parallel_tool_calls`. Raises ApiError."""
    for name in ("functions", "function_call"):
        if fields.get(name):
            raise unsupported(name)
    parallel = fields.boolean("parallel_tool_calls", True)
    definitions = _definitions(fields.get("tools"))
    definitions, must_call = _choose(fields.get("tool_choice"), definitions)
    if definitions and not tokenizer.marker_ids.keys() >= set(CALL_MARKERS):
        raise invalid("tools: this checkpoint's tokenizer has no markers for calls of functions", "tools")
    functions = tuple(Function(tool["function"]["name"], _parameters(tool)) for tool in definitions)
    return FunctionParams(
        definitions=tuple(definitions), functions=functions, must_call=must_call, parallel=parallel
    )  # fmt: skip


def _definitions(tools: Any) -> list[dict[str, Any]]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise invalid("tools: expected a list", "tools")
    if len(tools) > MOST_FUNCTIONS:
        raise invalid(f"tools: expected at most {MOST_FUNCTIONS}", "tools")
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type", "function") != "function":
            raise invalid(f"{where}: expected an object of type function", "tools")
        check_function(f"{where}.function", tool.get("function"))
    return list(tools)


def check_function(where: str, function: Any) -> None:
    """Raise ApiError 400 unless this describes a function; `where` is its place in the request."""
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name:
        raise invalid(f"{where}: expected an object with a name", "tools")
    if len(name) > LONGEST_NAME or name.split() != [name]:
        raise invalid(f"{where}.name: expected at most {LONGEST_NAME} characters without blanks", "tools")
    if not isinstance(function.get("parameters"), dict | None):
        raise invalid(f"{where}.parameters: expected an object", "tools")


def _parameters(tool: dict[str, Any]) -> dict[str, Any]:
    return tool["function"].get("parameters") or {}


def _choose(choice: Any, definitions: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """The functions that remain, and whether one must be called."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if choice is None or kind == "auto":
        return definitions, False
    if kind == "none":
        return [], False
    if kind == "required":
        if not definitions:
            raise invalid("tool_choice: there are no tools to choose from", "tool_choice")
        return definitions, True
    if isinstance(choice, dict) and kind == "function":
        return _only([_named(choice)], definitions), True
    if isinstance(choice, dict) and kind == "allowed_tools":
        return _allowed(choice.get("allowed_tools", choice), definitions)
    raise invalid("tool_choice: expected none, auto, required or an object that names a function", "tool_choice")


def _named(choice: dict[str, Any]) -> Any:
    function = choice.get("function")
    return function.get("name") if isinstance(function, dict) else choice.get("name")


def _allowed(allowed: Any, definitions: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise invalid("tool_choice.tools: expected a list of functions", "tool_choice")
    if allowed.get("mode") not in ("auto", "required"):
        raise invalid("tool_choice.mode: expected auto or required", "tool_choice")
    return _only([_named(entry) for entry in listed], definitions), allowed["mode"] == "required"


def _only(names: list[Any], definitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    offered = [tool["function"]["name"] for tool in definitions]
    for name in names:
        if name not in offered:
            raise invalid(f"tool_choice: {str(name)[:64]!r} is not one of the tools", "tool_choice")
    return [tool for tool in definitions if tool["function"]["name"] in names]
