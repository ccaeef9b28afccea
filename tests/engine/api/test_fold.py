# SPDX-License-Identifier: Apache-2.0
"""For any output and any grouping of it into events, the stream folds to exactly the unstreamed reply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparkpair.chat.tokenizer import TextTokenizer

from tests.engine.api.background import Background

VOCABULARY = 1536


@pytest.fixture(scope="module")
def background(text_directory: Path) -> Iterator[tuple[Background, httpx.Client]]:
    server = Background(text_directory)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=20) as client:
        yield server, client
    server.close()


def fold(text: str) -> dict[str, Any]:
    """What a client makes of a stream."""
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    folded: dict[str, Any] = {"content": "", "reasoning_content": "", "text": ""}
    for event in map(json.loads, events):
        assert "error" not in event
        for choice in event["choices"]:
            for key, value in choice.get("delta", {"text": choice.get("text")}).items():
                if key != "role":
                    folded[key] += value
            folded["finish_reason"] = choice["finish_reason"]
        folded["usage"] = event.get("usage")
        if "sparkpair" in event:
            folded["sparkpair"] = event["sparkpair"]
    return folded


token = st.one_of(st.integers(0, VOCABULARY - 1), st.integers(0, 255), st.integers(1499, 1535))
outputs = st.lists(st.lists(token, min_size=1, max_size=6), max_size=12)


@given(
    script=outputs,
    again=st.randoms(use_true_random=False),
    stop=st.lists(st.text("aeot ", min_size=1, max_size=3), max_size=2),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "max_tokens": st.integers(1, 40),
            "ignore_eos": st.booleans(),
            "reasoning_effort": st.sampled_from(["none", "low"]),
            "stream_options": st.just({"include_usage": True}),
        },
    ),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_stream_folds_to_the_unstreamed_reply(
    background: tuple[Background, httpx.Client],
    tokenizer: TextTokenizer,
    script: list[list[int]],
    again: Any,
    stop: list[str],
    fields: dict[str, Any],
) -> None:
    server, client = background
    # A script that runs out ends a reply as its budget would: say so in the request.
    ids = [token_id for step in script for token_id in step]
    body = {"messages": [{"role": "user", "content": "Hi"}], "stop": stop, "return_token_ids": True, **fields}
    server.engine.script = script
    whole = client.post("/chat/completions", json=body).json()
    places = sorted(again.randint(0, len(ids)) for _ in range(4))
    server.engine.script = [ids[a:b] for a, b in zip([0, *places], [*places, len(ids)], strict=True) if a < b]
    streamed = fold(client.post("/chat/completions", json={**body, "stream": True}).text)
    message = whole["choices"][0]["message"]
    assert streamed["content"] == message["content"]
    assert streamed["reasoning_content"] == message.get("reasoning_content", "")
    assert streamed["usage"] == whole["usage"]
    assert streamed["sparkpair"] == whole["sparkpair"]
    seen = whole["sparkpair"]["token_ids"]
    assert seen == ids[: len(seen)]
    assert whole["usage"]["completion_tokens"] == len(seen)


@given(script=outputs, ignore_eos=st.booleans())
@settings(max_examples=60, deadline=None)
def test_completion_stream_folds_to_the_unstreamed_reply(
    background: tuple[Background, httpx.Client], script: list[list[int]], ignore_eos: bool
) -> None:
    server, client = background
    server.engine.script = script
    body = {"prompt": "x", "ignore_eos": ignore_eos}
    whole = client.post("/completions", json=body).json()
    streamed = fold(client.post("/completions", json={**body, "stream": True}).text)
    assert streamed["text"] == whole["choices"][0]["text"]
    assert streamed["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert streamed["usage"] == whole["usage"]
