# SPDX-License-Identifier: Apache-2.0
"""The checkpoint's chat template: messages in, a prompt out as segments of text and markers.

The template runs in jinja's immutable sandbox with the helpers that chat templates expect
(`raise_exception`, `tojson`, `strftime_now`). A template without a switch for thinking gets one here: the
effort line is dropped and the think block that the prompt opens is closed again.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sparkpair.chat.guard import Guard
from sparkpair.chat.reasoning import THINK_CLOSE, THINK_OPEN
from sparkpair.chat.tokenizer import Segment, TextTokenizer
from sparkpair.errors import UserError

_EFFORT_LINE = "Reasoning Effort: "
_SYSTEM = Segment("<|system|>", True)
_OPEN = Segment(THINK_OPEN, True)
_CLOSE = Segment(THINK_CLOSE, True)

RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "enable_thinking", "reasoning_effort", "clear_thinking"}
)
"""Template variables that `render` sets itself."""


class TemplateError(Exception):
    """The template refused the messages; the text says why and is fit for a client."""


class Prompt(NamedTuple):
    """A rendered conversation. `inside_thinking`: the reply begins inside the think block."""

    segments: list[Segment]
    inside_thinking: bool


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled template together with the tokenizer whose markers it writes."""

    def __init__(self, text: str, tokenizer: TextTokenizer, source: str) -> None:
        """`source` names the template in errors. Raises UserError when it is no valid template."""
        self._tokenizer = tokenizer
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(
                f"{source}: line {error.lineno}: {error.message}; copy the checkpoint's template again"
            ) from error
        self._closes_thinking, self._drops_effort = self._probe(source)

    @classmethod
    def load(cls, directory: Path, tokenizer: TextTokenizer) -> ChatTemplate:
        """Read DIRECTORY/chat_template.jinja. Raises UserError when it is missing or invalid."""
        path = directory / "chat_template.jinja"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({error.strerror}); the checkpoint needs its chat template"
            ) from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: is not UTF-8 text; copy the checkpoint's template again") from error
        return cls(text, tokenizer, str(path))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        thinking: bool = True,
        effort: str | None = None,
        clear_thinking: bool = False,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt of a conversation.

        `messages` have text content, tool calls with arguments as objects, and roles that the template
        knows. `effort` is `low`, `high`, `max` or None for the template's default. `extra` are further
        template variables, none of RESERVED. Raises TemplateError when the template refuses or fails.
        """
        segments = self._segments(
            messages=messages,
            tools=list(tools) or None,
            enable_thinking=thinking,
            reasoning_effort=effort,
            clear_thinking=clear_thinking,
            add_generation_prompt=add_generation_prompt,
            **(extra or {}),
        )
        if not thinking:
            segments = self._without_thinking(segments)
        return Prompt(segments, bool(segments) and segments[-1] == _OPEN)

    def _segments(self, **variables: Any) -> list[Segment]:
        guard = Guard(self._tokenizer.marker_ids)
        try:
            rendered = self._template.render({name: guard.protect(value) for name, value in variables.items()})
        except TemplateError:
            raise
        except Exception as error:  # a template can raise anything; whatever it is, these messages caused it
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        return guard.split(rendered, self._tokenizer)

    def _probe(self, source: str) -> tuple[bool, bool]:
        """Whether the template closes the think block and drops the effort line by itself when thinking is
        off.
        """
        try:
            segments = self._segments(
                messages=[{"role": "user", "content": "x"}], enable_thinking=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise UserError(f"{source}: fails on a single user message: {error}") from error
        return segments[-1:] != [_OPEN], self._effort_line(segments) is None

    @staticmethod
    def _effort_line(segments: list[Segment]) -> int | None:
        """Where the effort line's role marker stands, before anything the caller wrote."""
        for index in range(min(len(segments) - 1, 4)):
            text = segments[index + 1]
            if segments[index] == _SYSTEM and not text.is_marker and text.text.startswith(_EFFORT_LINE):
                return index
        return None

    def _without_thinking(self, segments: list[Segment]) -> list[Segment]:
        if not self._drops_effort:
            index = self._effort_line(segments)
            if index is not None:
                segments = segments[:index] + segments[index + 2 :]
        if not self._closes_thinking and segments[-1:] == [_OPEN]:
            segments = [*segments, _CLOSE]
        return segments
