# SPDX-License-Identifier: Apache-2.0
"""What people do with anthropic-python, against a server with known replies: `anthropic_client.py URL BUSY_URL`."""

from __future__ import annotations

import sys
from typing import Any

import anthropic

from tests.engine.clients.programs.shown import PICTURE, WORDS_PART

MODEL = "m"
WEATHER: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
TIME: Any = {"name": "time", "input_schema": {"type": "object"}}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
ANSWER = "Oslo, ď삼👋."


def ask(scenario: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL, "max_tokens": 2000, "messages": [{"role": "user", "content": f"scenario:{scenario}"}], **fields
    }  # fmt: skip


def expect(error: type[Exception], call: Any) -> Any:
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")


def agree(client: anthropic.Anthropic, model: str, **asked: Any) -> int:
    """Streamed and unstreamed replies of whatever model this is are the same, and the prompt is as long as counted."""
    fields = ask(
        "plain", **{"model": model, "max_tokens": 24, "tools": [WEATHER], "thinking": {"type": "adaptive"}, **asked}
    )
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert [block.model_dump(exclude={"id"}) for block in final.content] == [
        block.model_dump(exclude={"id"}) for block in whole.content
    ]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    counted = client.messages.count_tokens(
        **{key: fields[key] for key in ("model", "messages", "tools", "thinking")}
    )  # fmt: skip
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    return counted.input_tokens


def look(client: anthropic.Anthropic, model: str) -> None:
    """Pictures are shown by the user and by a tool, and count."""

    def count(*messages: Any) -> int:
        return agree(client, model, messages=list(messages), max_tokens=6)

    data = PICTURE.partition(",")[2]
    image: dict[str, Any] = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/jpeg", "data": data},
    }
    plain = count({"role": "user", "content": [WORDS_PART]})
    shown = count({"role": "user", "content": [image, WORDS_PART]})
    url = {"type": "image", "source": {"type": "url", "url": PICTURE}}
    assert count({"role": "user", "content": [url, WORDS_PART]}) == shown > plain + 16
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image, WORDS_PART]}
    asked = {"role": "user", "content": "Look"}
    answered = {"role": "user", "content": [result]}
    assert count(asked, {"role": "assistant", "content": [call]}, answered) > shown
    image["source"] = {"type": "base64", "media_type": "image/jpeg", "data": data[:200]}
    broken = ask("plain", model=model, messages=[{"role": "user", "content": [image]}])
    error = expect(anthropic.BadRequestError, lambda: client.messages.create(**broken))
    assert error.body["error"]["message"].startswith("messages[0].content[0]: ")


def messages(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ask("plain"))
    assert [(block.type, block.text) for block in whole.content] == [("text", ANSWER)]
    whole = client.messages.create(**ask("plain", thinking=THINKING))
    assert [block.type for block in whole.content] == ["thinking", "text"]
    with client.messages.stream(**ask("plain", thinking=THINKING)) as stream:
        assert "".join(stream.text_stream) == ANSWER
        final = stream.get_final_message()
    assert final.usage.model_dump() == whole.usage.model_dump()
    assert final.usage.cache_read_input_tokens == 5
    assert (final.stop_reason, final.content[0].thinking) == ("end_turn", "Need data. ")
    counted = client.messages.count_tokens(
        model=MODEL, messages=ask("plain")["messages"], thinking=THINKING
    )  # fmt: skip
    assert counted.input_tokens == final.usage.input_tokens + final.usage.cache_read_input_tokens
    stopped = client.messages.create(**ask("plain", stop_sequences=["slo"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "slo")
    cut = client.messages.create(**ask("endless", max_tokens=4))
    assert cut.stop_reason == "max_tokens"


def functions(client: anthropic.Anthropic) -> None:
    asked = ask("calls", tools=[WEATHER, TIME], thinking=THINKING)
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert final.content[2].input == {"city": "Oslo", "days": 2}
    assert final.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "4"}
        for block in final.content
        if block.type == "tool_use"
    ]
    history = [
        *asked["messages"],
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": results},
    ]
    answer = client.messages.create(**{**asked, "messages": history})
    assert answer.content[-1].text == "It is 4 degrees."
    for choice in ({"type": "tool", "name": "weather"}, {"type": "any"}):
        forced = client.messages.create(**ask("eager", tools=[WEATHER, TIME], tool_choice=choice))
        assert (forced.content[0].name, forced.content[0].input["days"]) == ("weather", 2)


def errors(client: anthropic.Anthropic, busy_url: str) -> None:
    long = [{"role": "user", "content": "x " * 20_000}]
    error = expect(anthropic.BadRequestError, lambda: client.messages.create(**ask("plain", messages=long)))
    assert error.body["error"]["type"] == "invalid_request_error"
    assert "prompt is too long" in str(error)
    error = expect(anthropic.NotFoundError, lambda: client.messages.create(**ask("plain", model="other")))
    assert error.request_id is not None

    def read() -> None:
        with client.messages.stream(**ask("broken")) as stream:
            stream.get_final_message()

    assert "rank 1 left" in str(expect(anthropic.APIStatusError, read))
    with anthropic.Anthropic(base_url=busy_url, api_key="any", max_retries=0) as busy:
        error = expect(anthropic.RateLimitError, lambda: busy.messages.create(**ask("plain")))
        assert error.body["error"]["type"] == "overloaded_error"


def main(url: str, busy_url: str | None = None) -> None:
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        model = client.models.list().data[0].id
        agree(client, model)
        look(client, model)
        if busy_url is None:
            return
        messages(client)
        functions(client)
        errors(client, busy_url)
    print(f"anthropic {anthropic.__version__}: passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
