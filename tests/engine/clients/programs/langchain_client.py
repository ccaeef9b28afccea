# SPDX-License-Identifier: Apache-2.0
"""What people do with LangChain, against a server with known replies: `langchain_client.py URL BUSY_URL`."""

from __future__ import annotations

import sys
from typing import Any

import httpx
import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.engine.clients.programs.shown import IMAGE_PART, VIDEO_PART, WORDS_PART

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    },
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]
ANSWER = "Oslo, ď삼👋."


def ask(scenario: str) -> list[Any]:
    return [HumanMessage(f"scenario:{scenario}")]


def summed(model: Any, messages: list[Any]) -> AIMessageChunk:
    chunks = list(model.stream(messages))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    return total


def expect(error: type[Exception], call: Any) -> Any:
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")


def check(model: Any, text: Any) -> None:
    whole = model.invoke(ask("plain"))
    streamed = summed(model, ask("plain"))
    assert text(whole) == text(streamed) == ANSWER
    assert whole.usage_metadata == streamed.usage_metadata
    assert whole.usage_metadata["input_token_details"]["cache_read"] == 5
    bound = model.bind_tools(TOOLS)
    whole, streamed = bound.invoke(ask("calls")), summed(bound, ask("calls"))
    for message in (whole, streamed):
        assert [(call["name"], call["args"]) for call in message.tool_calls] == [
            ("weather", {"city": "Oslo", "days": 2}),
            ("time", {}),
        ]
    results = [ToolMessage("4", tool_call_id=call["id"]) for call in streamed.tool_calls]
    assert text(bound.invoke([*ask("calls"), streamed, *results])) == "It is 4 degrees."
    forced = model.bind_tools(TOOLS, tool_choice="weather").invoke(ask("eager"))
    assert forced.tool_calls[0]["args"]["days"] == 2


def agree(url: str) -> None:
    """Streamed and unstreamed replies of whatever model this is are the same."""
    model = ChatOpenAI(
        base_url=f"{url}/v1",
        model=httpx.get(f"{url}/v1/models").json()["data"][0]["id"],
        api_key="any",
        max_tokens=24,
        temperature=0,
        stream_usage=True,
        reasoning_effort="none",
    )
    whole, streamed = model.invoke(ask("plain")), summed(model, ask("plain"))
    assert whole.content == streamed.content != ""
    assert whole.usage_metadata["total_tokens"] == streamed.usage_metadata["total_tokens"]
    plain = whole.usage_metadata["input_tokens"]
    for parts in ([WORDS_PART, IMAGE_PART], [IMAGE_PART, WORDS_PART, VIDEO_PART]):
        asked = [HumanMessage(content=parts)]
        whole, streamed = model.invoke(asked), summed(model, asked)
        assert whole.content == streamed.content != ""
        assert whole.usage_metadata["total_tokens"] == streamed.usage_metadata["total_tokens"]
        assert whole.usage_metadata["input_tokens"] > plain + 16 * (len(parts) - 1)


def main(url: str, busy_url: str | None = None) -> None:
    agree(url)
    if busy_url is None:
        return
    options: dict[str, Any] = {"model": "m", "api_key": "any", "max_retries": 0, "stream_usage": True}
    chat = ChatOpenAI(base_url=f"{url}/v1", **options)
    check(chat, lambda message: message.content)
    check(ChatOpenAI(base_url=f"{url}/v1", use_responses_api=True, **options), lambda message: message.text)
    expect(ContextOverflowError, lambda: chat.invoke("x " * 20_000))
    assert "rank 1 left" in str(expect(openai.APIError, lambda: list(chat.stream(ask("broken")))))
    busy = ChatOpenAI(base_url=f"{busy_url}/v1", **options)
    expect(openai.RateLimitError, lambda: busy.invoke(ask("plain")))
    print("langchain: passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
