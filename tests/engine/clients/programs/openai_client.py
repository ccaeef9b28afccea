# SPDX-License-Identifier: Apache-2.0
"""What people do with openai-python, against a server with known replies: `openai_client.py URL BUSY_URL`.

Runs with version 2 and version 3 of the client. `BUSY_URL` is a server that takes no more requests; without it the
replies may be any, and only that streamed and unstreamed ones agree is checked. The other programs do the same.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
import pydantic

from tests.engine.clients.programs.shown import CLIP, IMAGE_PART, PICTURE, VIDEO_PART, WORDS_PART

MODEL = "m"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TIME: Any = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
ARGUMENTS = {"city": "Oslo", "days": 2}
ANSWER = "Oslo, ď삼👋."


def ask(scenario: str) -> Any:
    return [{"role": "user", "content": f"scenario:{scenario}"}]


def expect(error: type[Exception], call: Any) -> Any:
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")


def agree(client: openai.OpenAI, model: str, messages: Any = None, max_tokens: int = 24) -> int:
    """Streamed and unstreamed replies of whatever model this is are the same; the tokens of the prompt."""
    options: Any = {"model": model, "temperature": 0, "messages": messages or ask("plain"), "max_tokens": max_tokens}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    for key in ("content", "reasoning_content"):
        pieces = [getattr(chunk.choices[0].delta, key, None) or "" for chunk in chunks if chunk.choices]
        assert "".join(pieces) == (getattr(whole.choices[0].message, key, None) or "")
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    return int(whole.usage.prompt_tokens)


def agree_responses(client: openai.OpenAI, model: str, items: Any = "scenario:plain", max_tokens: int = 24) -> int:
    """The same of responses."""
    asked: Any = {"model": model, "input": items, "temperature": 0, "max_output_tokens": max_tokens}
    response = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert events[-1].response.usage.total_tokens == response.usage.total_tokens
    texts = [[part.text for item in told.output for part in item.content] for told in (events[-1].response, response)]
    assert texts[0] == texts[1]
    assert "".join(texts[0])
    assert client.responses.retrieve(response.id) == response
    return int(response.usage.input_tokens)


def look(client: openai.OpenAI, model: str) -> None:
    """Pictures and clips are shown in every way that there is, and count."""

    def count(*messages: Any) -> int:
        return agree(client, model, list(messages), max_tokens=6)

    def count_item(**part: Any) -> int:
        content = [{"type": "input_text", "text": "What is it?"}, part]
        return agree_responses(client, model, [{"role": "user", "content": content}], max_tokens=6)

    plain = count({"role": "user", "content": [WORDS_PART]})
    counts = [count({"role": "user", "content": [part, WORDS_PART]}) for part in (IMAGE_PART, VIDEO_PART)]
    call = {"id": "a", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    asked = {"role": "user", "content": [VIDEO_PART, WORDS_PART]}
    result = {"role": "tool", "tool_call_id": "a", "content": [IMAGE_PART]}
    assert count(asked, {"role": "assistant", "tool_calls": [call]}, result) > sum(counts) - plain
    assert count_item(type="input_image", image_url=PICTURE, detail="auto") == counts[0]
    assert count_item(type="input_video", video_url=CLIP) == counts[1]
    assert min(counts) > plain + 16
    broken = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE[:200]}}]}]
    error = expect(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=broken))
    assert error.param == "messages"
    assert "messages[0].content[0]: " in error.message


def chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ask("plain"))
    assert whole.choices[0].message.content == ANSWER
    assert whole.choices[0].message.model_extra == {"reasoning_content": "Need data. "}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=ask("plain"), stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage == whole.usage
    assert whole.usage.prompt_tokens_details.cached_tokens == 5
    assert whole.usage.completion_tokens_details.reasoning_tokens > 0
    assert whole._request_id is not None
    completion = client.completions.create(model=MODEL, prompt="scenario:endless", max_tokens=8)
    assert completion.choices[0].finish_reason == "length"


def functions(client: openai.OpenAI) -> None:
    tools = [WEATHER, TIME]
    messages = ask("calls")
    whole = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert [call.function.name for call in whole.message.tool_calls] == ["weather", "time"]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.content == whole.message.content == "Let me see."
    assert [
        (call.type, call.function.name, json.loads(call.function.arguments)) for call in final.message.tool_calls
    ] == [
        ("function", "weather", ARGUMENTS),
        ("function", "time", {}),
    ]
    named: Any = {"type": "function", "function": {"name": "weather"}}
    for choice in (named, "required"):
        with client.chat.completions.stream(
            model=MODEL, messages=ask("eager"), tools=tools, tool_choice=choice
        ) as stream:
            forced = stream.get_final_completion().choices[0]
        assert forced.message.tool_calls[0].function.parsed_arguments == ARGUMENTS
    results = [{"role": "tool", "tool_call_id": call.id, "content": "4"} for call in final.message.tool_calls]
    history = [*messages, final.message.model_dump(include={"role", "content", "tool_calls"}), *results]
    answer = client.chat.completions.create(model=MODEL, messages=history, tools=tools).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("It is 4 degrees.", "stop")


class Weather(pydantic.BaseModel):
    """The arguments of the weather function, as the client's own helper declares them."""

    city: str
    days: int


def parsing(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Weather, name="weather")
    parsed = client.chat.completions.parse(model=MODEL, messages=ask("calls"), tools=[tool]).choices[0]
    assert parsed.message.tool_calls[0].function.parsed_arguments == Weather(city="Oslo", days=2)
    expect(
        openai.LengthFinishReasonError,
        lambda: client.chat.completions.parse(model=MODEL, messages=ask("endless"), tools=[tool], max_tokens=9),
    )


def responses(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", **entry["function"]} for entry in (WEATHER, TIME)]
    with client.responses.stream(model=MODEL, input="scenario:calls", tools=tools) as stream:
        first = stream.get_final_response()
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert first.output_text == "Let me see."
    outputs: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "4"}
        for item in first.output
        if item.type == "function_call"
    ]
    second = client.responses.create(model=MODEL, input=outputs, tools=tools, previous_response_id=first.id)
    assert second.output_text == "It is 4 degrees."
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(second.id)
    gone = expect(openai.NotFoundError, lambda: client.responses.retrieve(second.id))
    assert gone.param == "response_id"
    replayed = client.responses.create(model=MODEL, input=[*first.output, *outputs], tools=tools, store=False)
    assert replayed.output_text == "It is 4 degrees."
    cut = client.responses.create(model=MODEL, input="scenario:endless", max_output_tokens=9)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def errors(client: openai.OpenAI, busy_url: str) -> None:
    long = [{"role": "user", "content": "x " * 20_000}]
    error = expect(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=long))
    assert (error.code, error.param, error.type) == ("context_length_exceeded", "messages", "invalid_request_error")
    error = expect(openai.NotFoundError, lambda: client.chat.completions.create(model="other", messages=ask("plain")))
    assert error.code == "model_not_found"
    stream = client.chat.completions.create(model=MODEL, messages=ask("broken"), stream=True)
    error = expect(openai.APIError, lambda: list(stream))
    assert "rank 1 left" in error.message
    error = expect(
        openai.InternalServerError, lambda: client.chat.completions.create(model=MODEL, messages=ask("broken"))
    )
    assert error.type == "server_error"
    with openai.OpenAI(base_url=f"{busy_url}/v1", api_key="any", max_retries=0) as busy:
        for streamed in (False, True):
            error = expect(
                openai.RateLimitError,
                lambda streamed=streamed: busy.chat.completions.create(
                    model=MODEL, messages=ask("plain"), stream=streamed
                ),
            )
            assert error.response.headers["retry-after"] == "5"
            expect(
                openai.RateLimitError,
                lambda streamed=streamed: busy.responses.create(model=MODEL, input="Hi", stream=streamed),
            )


def main(url: str, busy_url: str | None = None) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        model = client.models.list().data[0].id
        agree(client, model)
        agree_responses(client, model)
        look(client, model)
        if busy_url is None:
            return
        assert client.models.retrieve(MODEL).created > 0
        chat(client)
        functions(client)
        parsing(client)
        responses(client)
        errors(client, busy_url)
    print(f"openai {openai.__version__}: passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
