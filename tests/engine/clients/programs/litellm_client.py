# SPDX-License-Identifier: Apache-2.0
"""What people do with LiteLLM, against a server with known replies: `litellm_client.py URL BUSY_URL`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it fetches a file from the network on import

import httpx
import litellm

from tests.engine.clients.programs.shown import IMAGE_PART, VIDEO_PART, WORDS_PART

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {"name": "time", "parameters": {"type": "object", "properties": {}}},
}
ANSWER = "Oslo, ď삼👋."


def expect(error: type[Exception], call: Any) -> Any:
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")


class Asker:
    """One route of LiteLLM to the server."""

    def __init__(self, route: str, url: str, model: str = "m") -> None:
        self._options = {
            "model": f"{route}/{model}",
            "api_base": url,
            "api_key": "any",
            "num_retries": 0,
            "max_retries": 0,
        }

    def ask(self, scenario: str, **fields: Any) -> Any:
        messages = [{"role": "user", "content": f"scenario:{scenario}"}]
        return litellm.completion(**{"messages": messages, **self._options, **fields})

    def stream(self, scenario: str, **fields: Any) -> Any:
        chunks = list(self.ask(scenario, stream=True, stream_options={"include_usage": True}, **fields))
        return litellm.stream_chunk_builder(chunks)


def check(asker: Asker) -> None:
    whole, streamed = asker.ask("plain"), asker.stream("plain")
    for reply in (whole, streamed):
        message = reply.choices[0].message
        assert (message.content, message.reasoning_content) == (ANSWER, "Need data. "), message
        assert reply.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens == 5
    tools = [WEATHER, TIME]
    whole, streamed = asker.ask("calls", tools=tools), asker.stream("calls", tools=tools)
    for reply in (whole, streamed):
        calls = reply.choices[0].message.tool_calls
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            ("weather", {"city": "Oslo", "days": 2}),
            ("time", {}),
        ]
        assert reply.choices[0].finish_reason == "tool_calls"
    results = [{"role": "tool", "tool_call_id": call.id, "content": "4"} for call in calls]
    history = [{"role": "user", "content": "scenario:calls"}, whole.choices[0].message, *results]
    answer = asker.ask("calls", tools=tools, messages=history)
    assert answer.choices[0].message.content == "It is 4 degrees."
    expect(litellm.ContextWindowExceededError, lambda: asker.ask("x " * 20_000))


def agree(asker: Asker, **fields: Any) -> int:
    """Streamed and unstreamed replies of whatever model this is are the same; the tokens of the prompt."""
    asked = {"temperature": 0, "max_tokens": 24, **fields}
    whole, streamed = (ask("plain", **asked) for ask in (asker.ask, asker.stream))
    told = [
        (reply.choices[0].message.content or "", reply.choices[0].message.reasoning_content)
        for reply in (whole, streamed)
    ]
    assert told[0] == told[1]
    assert any(told[0])
    assert whole.usage.completion_tokens == streamed.usage.completion_tokens
    return int(whole.usage.prompt_tokens)


def look(asker: Asker) -> None:
    """Pictures and clips are shown and count."""
    plain, *shown = (
        agree(asker, messages=[{"role": "user", "content": parts}], max_tokens=6)
        for parts in ([WORDS_PART], [IMAGE_PART, WORDS_PART], [VIDEO_PART, WORDS_PART])
    )
    assert min(shown) > plain + 16


def main(url: str, busy_url: str | None = None) -> None:
    asker = Asker("openai", f"{url}/v1", httpx.get(f"{url}/v1/models").json()["data"][0]["id"])
    agree(asker)
    look(asker)
    if busy_url is None:
        return
    chat = Asker("openai", f"{url}/v1")
    check(chat)
    check(Asker("hosted_vllm", f"{url}/v1"))
    expect(litellm.NotFoundError, lambda: chat.ask("plain", model="openai/other"))
    expect(litellm.RateLimitError, lambda: Asker("openai", f"{busy_url}/v1").ask("plain"))
    expect(litellm.exceptions.MidStreamFallbackError, lambda: chat.stream("broken"))
    print("litellm: passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
