# SPDX-License-Identifier: Apache-2.0
"""Chat over a real socket, with the official client: streamed equals unstreamed, and every figure adds up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.engine.api.conftest import MODEL, Serve, Server

HELLO: Any = [{"role": "user", "content": "Hi"}]
REPLY = ("Let me see. ď삼👋", "</think>", "\n\nThe capital is Oslo. ", "👋", "<|user|>")


async def events_of(response: Any) -> list[Any]:
    """The JSON events of a stream; it must end with [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_unstreamed_reply(server: Server) -> None:
    server.says(*REPLY)
    completion = await server.openai.chat.completions.create(model=MODEL, messages=HELLO)
    choice = completion.choices[0]
    assert choice.message.content == "The capital is Oslo. 👋"
    assert choice.message.model_extra == {"reasoning_content": "Let me see. ď삼👋"}
    assert (choice.finish_reason, choice.index, choice.logprobs) == ("stop", 0, None)
    assert completion.id.startswith("chatcmpl-")
    assert len(completion.id) == len("chatcmpl-") + 24
    assert (completion.object, completion.model) == ("chat.completion", MODEL)


async def test_usage_counts_every_token(serve: Serve) -> None:
    async with serve(engine={"cached": 5}) as server:
        server.says(*REPLY)
        usage = (await server.openai.chat.completions.create(model=MODEL, messages=HELLO)).usage
        assert usage is not None
        prompt = server.ids(
            "[gMASK]", "<sop>", "<|system|>", "Reasoning Effort: Max", "<|user|>", "Hi", "<|assistant|>", "<think>"
        )
        assert server.engine.last.prompt_ids == tuple(prompt)
        assert usage.prompt_tokens == len(prompt)
        assert usage.completion_tokens == len(server.ids(*REPLY))
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 5
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == len(server.ids(*REPLY[:2]))


async def test_stream_says_what_the_unstreamed_reply_says(server: Server) -> None:
    server.says(*REPLY)
    whole = await server.openai.chat.completions.create(model=MODEL, messages=HELLO)
    stream = await server.openai.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert (
        "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
        == (whole.choices[0].message.model_extra or {})["reasoning_content"]
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


async def test_order_of_a_stream(server: Server) -> None:
    server.says(*REPLY)
    response = await server.chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    events = await events_of(response)
    assert events[0]["choices"] == [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]
    assert not any("role" in event["choices"][0]["delta"] for event in events[1:])
    kinds = [next(iter(event["choices"][0]["delta"]), None) for event in events[1:]]
    assert kinds == [*sorted(kinds[:-1], reverse=True), None], "reasoning, then content, then an empty delta"
    assert events[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert events[-1]["usage"]["completion_tokens"] == len(server.ids(*REPLY))
    assert events[-1]["sparkpair"]["ranks"] == [{"rank": 0, "step": 7}, {"rank": 1, "step": 7}]
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1


def test_synchronous_client_accumulates_a_stream(serve: Serve) -> None:
    def ask(url: str) -> tuple[str, str | None]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=HELLO)
            with client.chat.completions.stream(model=MODEL, messages=HELLO) as stream:
                final = stream.get_final_completion()
            assert final.choices[0].message.role == "assistant"
            return whole.choices[0].message.content or "", final.choices[0].message.content

    async def run() -> None:
        async with serve() as server:
            server.says(*REPLY)
            whole, streamed = await asyncio.to_thread(ask, server.url)
            assert whole == streamed == "The capital is Oslo. 👋"

    asyncio.run(run())


async def test_statistics_stand_beside_the_reply(server: Server) -> None:
    server.says(*REPLY)
    block = (await server.chat()).json()["sparkpair"]
    assert block == {
        "prefill_s": 0.25,
        "decode_s": 0.5,
        "time_to_first_token_s": 0.3,
        "drafted_tokens": 9,
        "accepted_tokens": 6,
        "ranks": [{"rank": 0, "step": 7}, {"rank": 1, "step": 7}],
    }
    block = (await server.chat(return_token_ids=True)).json()["sparkpair"]
    assert block["token_ids"] == server.ids(*REPLY)


async def test_reply_that_thinks_until_the_budget(server: Server) -> None:
    server.says("one two three four five six")
    choice = (await server.chat(max_tokens=3)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"].startswith("one")


async def test_reply_without_reasoning_has_no_reasoning_key(server: Server) -> None:
    server.says("Yes.", "<|user|>")
    message = (await server.chat(reasoning_effort="none")).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes."}


async def test_stop_string_ends_the_reply_and_frees_the_engine(server: Server) -> None:
    server.says("</think>", "one two STOP three", "<|user|>")
    body = (await server.chat(stop=["STOP"])).json()
    assert body["choices"][0]["message"]["content"] == "one two "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert server.engine.replies[-1].cancelled.is_set()
    assert body["usage"]["completion_tokens"] < len(server.ids("</think>", "one two STOP three"))


async def test_stop_string_in_a_stream_is_never_shown(server: Server) -> None:
    server.says("</think>", "one two STOP three", "<|user|>")
    events = await events_of(await server.chat(stop="STOP", stream=True))
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == "one two "
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_ignore_eos_shows_end_marks_and_runs_to_the_budget(server: Server) -> None:
    server.says("</think>", "a", "<|user|>", "b", "c")
    body = (await server.chat(ignore_eos=True, max_tokens=4)).json()
    assert server.engine.last.stop_ids == frozenset()
    assert body["choices"][0]["message"]["content"] == "a<|user|>b"
    assert body["choices"][0]["finish_reason"] == "length"


ON, OFF = "<|assistant|><think>", "<|assistant|><think></think>"


def kwargs(**fields: Any) -> dict[str, Any]:
    return {"chat_template_kwargs": fields}


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({}, f"Reasoning Effort: Max<|user|>Hi{ON}"),
        ({"reasoning_effort": "minimal"}, f"Reasoning Effort: Low<|user|>Hi{ON}"),
        ({"reasoning_effort": "medium"}, f"Reasoning Effort: High<|user|>Hi{ON}"),
        ({"reasoning_effort": "xhigh"}, f"Reasoning Effort: Max<|user|>Hi{ON}"),
        ({"reasoning_effort": "none"}, f"<sop><|user|>Hi{OFF}"),
        (kwargs(reasoning_effort="low"), f"Low<|user|>Hi{ON}"),
        ({"reasoning_effort": "high", **kwargs(reasoning_effort="low")}, f"High<|user|>Hi{ON}"),
        (kwargs(enable_thinking=False), f"<sop><|user|>Hi{OFF}"),
        ({"reasoning_effort": "none", **kwargs(enable_thinking=True)}, f"Max<|user|>Hi{ON}"),
        (kwargs(thinking=False), OFF),
        (kwargs(thinking={"type": "disabled"}), OFF),
        (kwargs(thinking={"type": "enabled"}), ON),
        (kwargs(thinking="perhaps"), ON),
        (kwargs(thinking=False, enable_thinking=True), ON),
        ({"chat_template_kwargs": None}, ON),
    ],
)
async def test_thinking_switches(server: Server, fields: dict[str, Any], ending: str) -> None:
    server.says("</think>", "<|user|>")
    assert (await server.chat(**fields)).status_code == 200
    prompt = b"".join(map(server.tokenizer.token_bytes, server.engine.last.prompt_ids)).decode()
    assert prompt.endswith(ending)


async def test_server_may_not_think_by_default(serve: Serve) -> None:
    async with serve(thinking_default=False) as server:
        server.says("Yes.", "<|user|>")
        assert "reasoning_content" not in (await server.chat()).json()["choices"][0]["message"]
        await server.chat(reasoning_effort="high")
        assert server.engine.last.prompt_ids[-1] == server.tokenizer.marker_ids["<think>"]


async def test_markers_typed_by_the_user_reach_the_engine_as_text(server: Server) -> None:
    server.says("</think>", "<|user|>")
    await server.chat(messages=[{"role": "user", "content": "<|user|>[gMASK]</think>"}])
    markers = set(server.tokenizer.marker_ids.values())
    reached = [token_id for token_id in server.engine.last.prompt_ids if token_id in markers]
    assert reached == server.ids("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<think>")


async def test_budget_of_a_request_without_one_is_cut_to_the_window(serve: Serve) -> None:
    async with serve(engine={"context_length": 40}, default_max_tokens=1000) as server:
        server.says("</think>", "<|user|>")
        await server.chat()
        assert len(server.engine.last.prompt_ids) + server.engine.last.max_new_tokens == 40
    async with serve(default_max_tokens=1000) as server:
        await server.chat()
        assert server.engine.last.max_new_tokens == 1000


async def test_request_reaches_the_engine_as_asked(server: Server) -> None:
    server.says("</think>", "<|user|>")
    await server.chat(
        temperature="0.7", top_p=0.5, top_k=20.0, min_p=0.1, seed=-3, max_completion_tokens=9, min_tokens=4,
        priority="background", draft=False,
    )  # fmt: skip
    request = server.engine.last
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.7, 0.5, 20, 0.1)
    assert sampling.seed == -3
    assert (request.max_new_tokens, request.min_new_tokens) == (9, 4)
    assert (request.background, request.draft) == (True, False)


async def test_absent_fields_mean_the_checkpoints_defaults(server: Server) -> None:
    server.says("</think>", "<|user|>")
    nulls = dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "n", "stream"))
    assert (await server.chat(**nulls)).status_code == 200
    sampling = server.engine.last.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (1.0, 0.95, 0, None)
    turns = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
    assert server.engine.last.stop_ids == frozenset(server.ids(*turns))
    assert not server.engine.last.background
    assert server.engine.last.draft


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": -5}, 1),
        ({"max_tokens": 0, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 5),
        ({"max_tokens": "6"}, 6),
        ({"max_tokens": 6.0}, 6),
    ],
)
async def test_reply_budgets(server: Server, fields: dict[str, Any], tokens: int) -> None:
    server.says("</think>", "<|user|>")
    await server.chat(**fields)
    assert server.engine.last.max_new_tokens == tokens


async def test_coldest_temperatures_are_greedy(server: Server) -> None:
    server.says("</think>", "<|user|>")
    for temperature in (0, -1, 1e-300):
        assert (await server.chat(temperature=temperature)).status_code == 200
        assert server.engine.last.sampling.temperature == 0.0


async def test_fields_without_effect_are_accepted_and_logged_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sparkpair.api.notices")
    server.says("</think>", "<|user|>")
    fields = {"logit_bias": {"1": 5}, "presence_penalty": 1, "user": "me", "whatever": [1], "logprobs": False}
    for _ in range(2):
        assert (await server.chat(**fields)).status_code == 200
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert all(any(name in line for line in said) for name in ("logit_bias", "presence_penalty", "whatever"))


async def test_functions_without_effect_are_accepted(server: Server) -> None:
    server.says("</think>", "<|user|>")
    tool = {"type": "function", "function": {"name": "f"}}
    assert (await server.chat(tools=[])).status_code == 200
    assert (await server.chat(tools=[tool], tool_choice="none")).status_code == 200
    assert (await server.chat(response_format={"type": "text"})).status_code == 200


async def test_model_names(serve: Serve) -> None:
    async with serve(aliases=("small", "fast")) as server:
        server.says("</think>", "<|user|>")
        assert (await server.chat(model="fast")).json()["model"] == "fast"
        assert (await server.http.post("/v1/chat/completions", json={"messages": HELLO})).json()["model"] == MODEL
        with pytest.raises(openai.NotFoundError) as caught:
            await server.openai.chat.completions.create(model="other", messages=HELLO)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    async with serve(aliases=("*",)) as server:
        server.says("</think>", "<|user|>")
        assert (await server.chat(model="anything")).json()["model"] == MODEL


async def test_window_is_refused_in_openais_words(serve: Serve) -> None:
    async with serve(engine={"context_length": 40}) as server:
        server.says("</think>", "<|user|>")
        prompt = 0
        assert (await server.chat()).status_code == 200
        prompt = len(server.engine.last.prompt_ids)
        assert (await server.chat(max_tokens=40 - prompt)).status_code == 200
        for stream in (False, True):
            response = await server.chat(max_tokens=41 - prompt, stream=stream)
            assert response.status_code == 400
            assert response.json()["error"] == {
                "message": "This model's maximum context length is 40 tokens. However, you requested 41 tokens"
                f" ({prompt} in the messages, {41 - prompt} in the completion). Please reduce the length of the"
                " messages or completion. (context_length_exceeded)",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
    async with serve(engine={"context_length": prompt}) as server:
        assert (await server.chat()).json()["error"]["code"] == "context_length_exceeded"
    async with serve(engine={"context_length": prompt + 1}) as server:
        server.says("</think>", "<|user|>")
        assert (await server.chat()).status_code == 200
        assert server.engine.last.max_new_tokens == 1
