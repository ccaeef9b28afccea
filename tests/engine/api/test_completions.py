# SPDX-License-Identifier: Apache-2.0
"""Completions: raw text or ids in, the text as decoded out."""

from __future__ import annotations

import json

from tests.engine.api.conftest import MODEL, Server


async def test_text_is_continued_without_template_or_split(server: Server) -> None:
    server.says(" upon", "</think>", "\na time", "<|endoftext|>")
    completion = await server.openai.completions.create(model=MODEL, prompt="Once")
    assert completion.choices[0].text == " upon</think>\na time"
    assert (completion.choices[0].finish_reason, completion.choices[0].index) == ("stop", 0)
    assert (completion.object, completion.id[:5]) == ("text_completion", "cmpl-")
    assert list(server.engine.last.prompt_ids) == server.tokenizer.encode_text("Once")
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(server.ids(" upon", "</think>", "\na time", "<|endoftext|>"))
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


async def test_stream_says_what_the_unstreamed_reply_says(server: Server) -> None:
    server.says(" upon a time 👋", "<|endoftext|>")
    whole = await server.openai.completions.create(model=MODEL, prompt="Once")
    stream = await server.openai.completions.create(
        model=MODEL, prompt="Once", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].choices[0].text == ""
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)


async def test_usage_stands_on_the_last_chunk_unless_asked_for_apart(server: Server) -> None:
    server.says("a", "<|endoftext|>")
    response = await server.http.post("/v1/completions", json={"prompt": "x", "stream": True})
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    last = json.loads(events[-2])
    assert last["usage"]["completion_tokens"] == 2
    assert last["sparkpair"]["ranks"] == [{"rank": 0, "step": 7}, {"rank": 1, "step": 7}]


async def test_token_ids_run_as_given(server: Server) -> None:
    server.says("a", "<|endoftext|>")
    prompt = [*server.ids("<|user|>", "Hi"), 5]
    await server.openai.completions.create(model=MODEL, prompt=prompt)
    assert list(server.engine.last.prompt_ids) == prompt


async def test_markers_in_the_text_are_ids_only_when_asked_for(server: Server) -> None:
    server.says("a", "<|endoftext|>")
    text = "[gMASK]<sop><|user|>Hi"
    await server.http.post("/v1/completions", json={"prompt": text})
    assert list(server.engine.last.prompt_ids) == server.tokenizer.encode_text(text)
    await server.http.post("/v1/completions", json={"prompt": text, "add_special_tokens": True})
    assert list(server.engine.last.prompt_ids) == server.ids("[gMASK]", "<sop>", "<|user|>", "Hi")


async def test_fields_that_mean_nothing_are_accepted(server: Server) -> None:
    server.says("a", "<|endoftext|>")
    body = {"prompt": "x", "best_of": 1, "echo": False, "suffix": "", "logprobs": None, "user": "me"}
    assert (await server.http.post("/v1/completions", json=body)).status_code == 200


async def test_window_names_the_prompt(server: Server) -> None:
    response = await server.http.post("/v1/completions", json={"prompt": [1] * 4000, "max_tokens": 97})
    assert response.json()["error"] == {
        "message": "This model's maximum context length is 4096 tokens. However, you requested 4097 tokens (4000 in the"
        " prompt, 97 in the completion). Please reduce the length of the messages or completion."
        " (context_length_exceeded)",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": "context_length_exceeded",
    }
