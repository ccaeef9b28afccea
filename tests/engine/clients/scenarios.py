# SPDX-License-Identifier: Apache-2.0
"""An engine that says what the prompt asks for by name, so that a client in another process can choose the reply."""

from __future__ import annotations

import re

from sparkpair.chat.tokenizer import TextTokenizer
from sparkpair.request import GenerationRequest

from tests.engine.api.scripted import FAIL, HOLD, Script, ScriptedEngine, ScriptedReply

THOUGHT = ("Need data. ", "</think>", "\n\n")
WEATHER = (
    "<tool_call>", "weather", "<arg_key>", "city", "</arg_key>", "<arg_value>", "Oslo", "</arg_value>",
    "<arg_key>", "days", "</arg_key>", "<arg_value>", "2", "</arg_value>", "</tool_call>",
)  # fmt: skip
TIME = ("<tool_call>", "time", "</tool_call>")

SCENARIOS: dict[str, tuple[str, ...]] = {
    "plain": (*THOUGHT, "Oslo, ď삼👋.", "<|user|>"),
    "calls": (*THOUGHT, "Let me see.", *WEATHER, *TIME, "<|observation|>"),
    "endless": (*THOUGHT, *["more and "] * 50),
    "eager": (*THOUGHT, "Surely", "<|user|>"),
    "broken": (*THOUGHT, "It is", FAIL),
    "stuck": (HOLD,),
    "result": (*THOUGHT, "It is 4 degrees.", "<|user|>"),
}
"""What the model says after `scenario:NAME`; once it has a result of a call, `result`. `eager` must be made to call."""

FORCED = (*WEATHER[2:], "<|observation|>")
"""What the model says behind a call that was begun for it."""

_NAME = re.compile(r"scenario:(\w+)")


class ScenarioEngine(ScriptedEngine):
    """Plays the scenario that the prompt names last; without one, `plain`."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        super().__init__(cached=5, context_length=16_384)
        self._tokenizer = tokenizer

    def submit(self, request: GenerationRequest) -> ScriptedReply:
        """See request.Engine."""
        prompt = b"".join(map(self._tokenizer.token_bytes, request.prompt_ids)).decode()
        self.script = self._script(prompt)
        return super().submit(request)

    def _script(self, prompt: str) -> Script:
        if prompt.endswith("<tool_call>weather"):
            parts = FORCED
        elif prompt.endswith("<tool_call>"):
            parts = ("weather", *FORCED)
        elif prompt.rpartition("<|user|>")[2].count("<tool_response>"):
            parts = SCENARIOS["result"]
        else:
            parts = SCENARIOS[["plain", *_NAME.findall(prompt)][-1]]
        if prompt.endswith("</think>") and "</think>" in parts:
            parts = parts[parts.index("</think>") + 2 :]
        return [step for part in parts for step in self._steps(part)]

    def _steps(self, part: str) -> Script:
        if part in (HOLD, FAIL):
            return [part]
        if part in self._tokenizer.marker_ids:
            return [[self._tokenizer.marker_ids[part]]]
        return [[token_id] for token_id in self._tokenizer.encode_text(part)]
