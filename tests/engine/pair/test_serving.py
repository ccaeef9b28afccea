# SPDX-License-Identifier: Apache-2.0
"""Two real ranks answer the official client; clients that leave free the engine; both ranks report every step."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from openai import OpenAI

from tests.engine.pair.ranks import LOOPBACK, World

pytestmark = pytest.mark.pair

MESSAGES = [{"role": "user", "content": "Say something about rivers."}]


@pytest.fixture(scope="module")
def client(pair: World) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{pair.url}/v1", api_key="unused", max_retries=0) as opened:
        yield opened


def health(pair: World) -> dict[str, object]:
    connection = http.client.HTTPConnection(LOOPBACK, pair.port, timeout=10)
    connection.request("GET", "/health")
    found: dict[str, object] = json.loads(connection.getresponse().read())
    connection.close()
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_streamed_and_unstreamed_replies_are_the_same_text_and_usage(client: OpenAI, temperature: float) -> None:
    whole = client.chat.completions.create(model="miniature", messages=MESSAGES, max_tokens=24, temperature=temperature)
    chunks = list(
        client.chat.completions.create(
            model="miniature",
            messages=MESSAGES,
            max_tokens=24,
            temperature=temperature,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    message = whole.choices[0].message
    assert "".join(delta.content or "" for delta in deltas) == (message.content or "")
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == message.reasoning_content
    assert len(reasoning) > 24
    streamed = chunks[-1].usage
    assert streamed is not None
    assert whole.usage is not None
    # The second time the prompt is resumed, which is the one figure that differs.
    streamed.prompt_tokens_details = whole.usage.prompt_tokens_details
    assert streamed == whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.completion_tokens == 24


def test_an_identical_request_repeats_its_reply_and_another_seed_does_not(client: OpenAI) -> None:
    def ask(seed: int | None) -> str:
        reply = client.completions.create(model="miniature", prompt="The river", max_tokens=16, seed=seed)
        return reply.choices[0].text

    assert ask(None) == ask(None)
    assert ask(1) == ask(1)
    assert ask(1) != ask(2)


def test_every_rank_reports_the_step_of_the_reply(client: OpenAI, pair: World) -> None:
    reply = client.completions.create(model="miniature", prompt="The river", max_tokens=4)
    ranks = reply.model_extra["sparkpair"]["ranks"]
    assert [entry["rank"] for entry in ranks] == [0, 1]
    assert ranks[0]["step"] == ranks[1]["step"] == health(pair)["step"]


def test_a_prompt_of_several_chunks_past_the_selection_is_answered(client: OpenAI) -> None:
    reply = client.completions.create(model="miniature", prompt=[100] * 700, max_tokens=4, temperature=0)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 700
    assert reply.usage.completion_tokens == 4


def post(pair: World, body: dict[str, object]) -> socket.socket:
    """Send a completion request and return the open connection."""
    payload = json.dumps(body).encode()
    connection = socket.create_connection((LOOPBACK, pair.port), timeout=30)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(payload)}\r\n\r\n".encode()
        + payload
    )
    return connection


def wait_until(pair: World, figure: str, value: int) -> None:
    while health(pair)[figure] != value:
        pass


LONG = {"prompt": "On and on", "max_tokens": 4000, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unstreamed"])
def test_a_client_that_leaves_frees_the_engine_at_once(client: OpenAI, pair: World, stream: bool) -> None:
    connection = post(pair, {**LONG, "stream": stream})
    wait_until(pair, "requests_running", 1)
    connection.close()
    started = time.monotonic()
    client.completions.create(model="miniature", prompt="Next", max_tokens=1)
    # The abandoned reply would have taken minutes; a step takes a fraction of a second.
    assert time.monotonic() - started < 10


def test_a_client_that_leaves_during_a_long_prompt_frees_the_engine(client: OpenAI, pair: World) -> None:
    connection = post(pair, {**LONG, "prompt": [100] * 4000})
    while health(pair)["streams"]["filling"] != 1:  # type: ignore[index]
        pass
    connection.close()
    before = health(pair)["completion_tokens_total"]
    client.completions.create(model="miniature", prompt="Next", max_tokens=1)
    assert health(pair)["completion_tokens_total"] == int(str(before)) + 1


def test_tokens_of_a_running_reply_count_at_once_and_once(pair: World) -> None:
    def total() -> int:
        return int(str(health(pair)["completion_tokens_total"]))

    seen = [total()]
    connection = post(pair, {**LONG, "stream": True})
    while seen[-1] < seen[0] + 5:
        seen.append(total())
    connection.close()
    while health(pair)["requests_running"]:
        seen.append(total())
    seen += [total(), total()]
    assert seen == sorted(seen)
    assert seen[-1] == seen[-2] >= seen[0] + 5


def test_four_requests_run_at_once_and_the_fifth_waits(client: OpenAI, pair: World) -> None:
    running = [post(pair, {**LONG, "prompt": f"On and on {number}", "stream": True}) for number in range(4)]
    wait_until(pair, "requests_running", 4)
    waiting = post(pair, {**LONG, "max_tokens": 1})
    wait_until(pair, "requests_waiting", 1)
    dropped = post(pair, {**LONG, "max_tokens": 2})
    wait_until(pair, "requests_waiting", 2)
    dropped.close()
    wait_until(pair, "requests_waiting", 1)
    running.pop().close()
    assert b"200 OK" in waiting.recv(200)
    for connection in (*running, waiting):
        connection.close()
    wait_until(pair, "requests_running", 0)


def test_a_prompt_that_extends_another_resumes_on_both_ranks(client: OpenAI) -> None:
    def ask(tokens: int) -> tuple[str, int, int]:
        reply = client.completions.create(
            model="miniature", prompt=list(range(100, 100 + tokens)), max_tokens=6, temperature=0
        )
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        return reply.choices[0].text, reply.usage.prompt_tokens, reply.usage.prompt_tokens_details.cached_tokens or 0

    first = ask(500)
    assert first[2] == 0
    assert ask(500) == (first[0], 500, 500)
    assert ask(600)[2] == 448


def test_another_effort_reads_the_conversation_anew_and_usage_shows_it(client: OpenAI) -> None:
    def asked(effort: Literal["low", "high"]) -> tuple[int, int]:
        reply = client.chat.completions.create(
            model="miniature",
            messages=[{"role": "user", "content": "Tell me of rivers and of lakes. " * 30}],
            max_tokens=1,
            reasoning_effort=effort,
        )
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        return reply.usage.prompt_tokens_details.cached_tokens or 0, reply.usage.prompt_tokens

    assert asked("low")[0] < 64
    cached, prompt = asked("low")
    assert cached == prompt > 128
    assert asked("high")[0] < 64, "the effort stands at the beginning of the prompt"
    cached, prompt = asked("high")
    assert cached == prompt
