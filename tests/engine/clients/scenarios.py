# SPDX-License-Identifier: Apache-2.0
"""An engine that says what the prompt asks for by name, so that a client in another process can choose the reply."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparkpair.chat.tokenizer import TextTokenizer
from sparkpair.request import GenerationRequest

from tests.engine.api.scripted import FAIL, HOLD, Script, ScriptedEngine, ScriptedReply

THOUGHT = ("Need data. ", "</think>", "\n\n")
WEATHER = (
    "<tool_call>", "weather", "<arg_key>", "city", "</arg_key>", "<arg_value>", "Oslo", "</arg_value>",
    "<arg_key>", "days", "</arg_key>", "<arg_value>", "2", "</arg_value>", "</tool_call>",
)  # fmt: skip
TIME = ("<tool_call>", "time", "</tool_call>")

SHELL = "shell"
"""In a scenario: call the function that runs a command, whatever the client calls it."""

COMMAND = "echo spark$((40 + 2)) > out.txt"
SHELLS = {"Bash": "command", "exec_command": "cmd", "bash": "command"}
"""The names of that function and of its argument."""

SCENARIOS: dict[str, tuple[str, ...]] = {
    "plain": (*THOUGHT, "Oslo, ď삼👋.", "<|user|>"),
    "calls": (*THOUGHT, "Let me see.", *WEATHER, *TIME, "<|observation|>"),
    "endless": (*THOUGHT, *["more and "] * 50),
    "eager": (*THOUGHT, "Surely", "<|user|>"),
    "broken": (*THOUGHT, "It is", FAIL),
    "stuck": (HOLD,),
    "agent": (*THOUGHT, SHELL, "<|observation|>"),
    "result": (*THOUGHT, "It is 4 degrees.", "<|user|>"),
}
"""What the model says after `scenario:NAME`; once it has a result of a call, `result`. `eager` must be made to call."""

FORCED = (*WEATHER[2:], "<|observation|>")
"""What the model says behind a call that it was made to begin."""

_NAME = re.compile(r"scenario:(\w+)")


class ScenarioEngine(ScriptedEngine):
    """Plays the scenario that the prompt names last; without one, `plain`."""

    def __init__(self, tokenizer: TextTokenizer, context_length: int = 16_384) -> None:
        super().__init__(cached=5, context_length=context_length)
        self._tokenizer = tokenizer

    def submit(self, request: GenerationRequest) -> ScriptedReply:
        """See request.Engine."""
        self.script = self._script(self._text(request.prompt_ids), getattr(request.constraint, "call", ()))
        return super().submit(request)

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, ids)).decode()

    def _script(self, prompt: str, call: Sequence[int]) -> Script:
        """`call` is what the answer is made to begin with, whatever the model would say there."""
        name = "result" if "<tool_response>" in prompt else ["plain", *_NAME.findall(prompt)][-1]
        parts = SCENARIOS[name]
        if call:
            begun = ("weather", *FORCED) if self._text(call) == "<tool_call>" else FORCED
            parts = (*THOUGHT, *["!"] * len(call), *begun)
        if prompt.endswith("</think>") and "</think>" in parts:
            parts = parts[parts.index("</think>") + 2 :]
        if SHELL in parts:
            place = parts.index(SHELL)
            parts = (*parts[:place], *_shell_call(prompt), *parts[place + 1 :])
        return [step for part in parts for step in self._steps(part)]

    def _steps(self, part: str) -> Script:
        if part in (HOLD, FAIL):
            return [part]
        if part in self._tokenizer.marker_ids:
            return [[self._tokenizer.marker_ids[part]]]
        return [[token_id] for token_id in self._tokenizer.encode_text(part)]


def _shell_call(prompt: str) -> tuple[str, ...]:
    """What the model says; nothing where it has no such function, as when it is to find a title."""
    name = next((name for name in SHELLS if f'"name": "{name}"' in prompt), None)
    if name is None:
        return ()
    arguments = {SHELLS[name]: COMMAND, "description": "Write a file"}
    pairs = [("<arg_key>", key, "</arg_key>", "<arg_value>", text, "</arg_value>") for key, text in arguments.items()]
    return ("<tool_call>", name, *(part for pair in pairs for part in pair), "</tool_call>")
