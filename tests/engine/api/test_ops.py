# SPDX-License-Identifier: Apache-2.0
"""Models, health and metrics, and what every reply carries."""

from __future__ import annotations

import asyncio
import logging

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sparkpair import __version__

from tests.engine.api.conftest import MODEL, Serve, Server
from tests.engine.api.raw import chat_body, closed, read_answer, read_head, request
from tests.engine.api.scripted import FAIL, HOLD, ScriptedReply


async def test_models_are_listed_main_name_first(serve: Serve) -> None:
    async with serve(aliases=("fast", "*")) as server:
        models = (await server.openai.models.list()).data
        assert [model.id for model in models] == [MODEL, "fast"]
        assert all(model.object == "model" and model.owned_by and model.created > 1_600_000_000 for model in models)
        assert (models[0].model_extra or {})["max_model_len"] == 4096
        assert (await server.openai.models.retrieve("fast")).id == "fast"
        with pytest.raises(openai.NotFoundError):
            await server.openai.models.retrieve("slow")


async def test_model_names_may_have_slashes(serve: Serve) -> None:
    async with serve(model_name="org/name") as server:
        assert (await server.http.get("/v1/models/org/name")).json()["id"] == "org/name"


async def test_health_has_every_figure(server: Server) -> None:
    response = await server.http.get("/health")
    assert response.status_code == 200
    assert response.json() == {
        "ok": True,
        "backend": "sparkpair",
        "version": __version__,
        "model": MODEL,
        "busy": False,
        "requests_running": 0,
        "requests_waiting": 2,
        "requests_total": 0,
        "prompt_tokens_total": 11,
        "completion_tokens_total": 27,
        "cached_tokens_total": 3,
        "rounds_total": 13,
        "drafted_total": 18,
        "accepted_total": 12,
        "kept_prompts": 0,
        "kept_bytes": 0,
        "pool_tokens": 0,
        "pool_free_tokens": 0,
        "prefill_seconds_total": 1.5,
        "decode_seconds_total": 2.5,
        "context_length": 4096,
        "vision": False,
        "world_size": 2,
        "step": 57,
        "iteration_s": 0.125,
        "streams": {"decoding": 0, "filling": 0, "prefilling": 0, "paused": 0, "max": 1},
        "ranks": [{"rank": 0, "step": 57}, {"rank": 1, "step": 57}],
    }


async def test_health_and_metrics_answer_while_the_engine_hangs(server: Server) -> None:
    server.engine.script = [HOLD]
    running = asyncio.create_task(server.chat())
    reply = await server.engine.submitted()
    assert (await server.http.get("/health")).json()["busy"] is True
    assert "tensorfold:requests_running 1.0" in (await server.http.get("/metrics")).text
    reply.cancel()
    assert (await running).status_code == 500


async def test_dead_engine_is_unhealthy_and_takes_no_requests(serve: Serve) -> None:
    async with serve(engine={"error": "rank 1 left: it was killed"}) as server:
        response = await server.http.get("/health")
        assert response.status_code == 503
        assert (response.json()["ok"], response.json()["error"]) == (False, "rank 1 left: it was killed")
        for stream in (False, True):
            response = await server.chat(stream=stream)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "5"
            assert response.json()["error"] == {
                "message": "rank 1 left: it was killed", "type": "server_error", "param": None, "code": None
            }  # fmt: skip


async def test_metrics_have_the_names_that_dashboards_read(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    for _ in range(3):
        await server.chat()
    response = await server.http.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    types = {name: family.type for name, family in families.items()}
    # The parser names a counter without its `_total`.
    assert types == {
        **{f"tensorfold:{name}": "gauge" for name in (
            "requests_running", "requests_waiting", "requests_running_max", "generation_tokens_running",
            "num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio", "kv_cache_usage_perc",
        )},
        **{f"tensorfold:{name}": "counter" for name in (
            "prompt_tokens", "generation_tokens", "prompt_tokens_cached", "client_disconnections",
            "decode_rounds", "mtp_drafted", "mtp_accepted", "spec_decode_num_draft_tokens",
            "spec_decode_num_accepted_tokens",
        )},
        **{f"tensorfold:{name}": "histogram" for name in (
            "request_latency_seconds", "time_to_first_token_seconds", "request_decode_seconds",
            "request_prefill_seconds", "e2e_request_latency_seconds", "request_decode_time_seconds",
            "request_prefill_time_seconds",
        )},
        **{f"tensorfold_health:{name}": "counter" for name in (
            "requests", "completion_tokens", "cached_tokens", "prefill_seconds", "decode_seconds", "rounds",
        )},
        **{f"tensorfold_health:{name}": "gauge" for name in (
            "streams", "streams_max", "context_length", "kept_prompts", "pool_tokens", "pool_free_tokens",
        )},
    }  # fmt: skip
    assert "tensorfold:prompt_tokens_total 11.0" in response.text
    assert "tensorfold:generation_tokens_total 22.0" in response.text
    assert "tensorfold_health:completion_tokens_total 27.0" in response.text
    for name, value in (("decode_rounds", 13), ("mtp_drafted", 18), ("mtp_accepted", 12)):
        assert f"tensorfold:{name}_total {value}.0" in response.text
    assert 'tensorfold_health:streams{state="filling"} 0.0' in response.text
    buckets = [
        sample for sample in families["tensorfold:request_prefill_seconds"].samples if sample.name.endswith("_bucket")
    ]
    assert [sample.labels["le"] for sample in buckets] == [
        "0.01", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "60.0", "120.0", "300.0", "+Inf",
    ]  # fmt: skip
    assert [sample.value for sample in buckets] == [0, 0, 0, *[3.0] * 11], "0.25 s belongs into its own bucket"
    assert "_created" not in response.text


async def test_running_tokens_are_counted(server: Server) -> None:
    server.engine.script = [server.ids("one two three"), HOLD]
    reader, writer = await server.connect()
    writer.write(request(body=chat_body(stream=True)))
    await reader.readuntil(b"reasoning_content")
    count = len(server.ids("one two three"))
    text = (await server.http.get("/metrics")).text
    assert f"tensorfold:generation_tokens_running {count}.0" in text
    filled = (len(server.engine.last.prompt_ids) + count) / server.engine.context_length
    for name in ('ratio{pool="0"}', 'perc{stream="0"}'):
        assert f"tensorfold:kv_cache_usage_{name} {filled}" in text
    writer.close()


async def test_a_window_is_empty_where_nothing_has_been_said_yet(server: Server) -> None:
    server.engine.script = [HOLD]
    waiting = asyncio.create_task(server.chat())
    await server.engine.submitted()
    text = (await server.http.get("/metrics")).text
    for name in ('ratio{pool="0"}', 'perc{stream="0"}'):
        assert f"tensorfold:kv_cache_usage_{name} 0.0" in text
        assert text.count(f"tensorfold:kv_cache_usage_{name.partition('{')[0]}{{") == 1
    server.engine.replies[0].cancel()
    await waiting


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1//models", 200), ("/v1/models/", 200), ("//v1///models//", 200), ("/models", 200), ("/v1/health", 200),
        ("/health/", 200), ("/v1/metrics", 200), ("/v1/models?beta=true", 200), (f"/v1//models/{MODEL}/", 200),
    ],
)  # fmt: skip
async def test_paths_typed_by_people_are_understood(server: Server, path: str, status: int) -> None:
    assert (await server.http.get(f"{server.url}{path}")).status_code == status
    assert (await server.http.head(f"{server.url}{path}")).status_code == status


async def test_chat_routes_typed_by_people_are_understood(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    for path in ("/v1/chat/completions/", "/chat/completions", "/v1//chat//completions?beta=true"):
        response = await server.http.post(f"{server.url}{path}", content=chat_body())
        assert response.status_code == 200, path


async def test_every_reply_has_a_request_id(server: Server) -> None:
    server.says("</think>", "Yes.", "<|user|>")
    sent = await server.http.get("/health", headers={"x-request-id": "abc-1"})
    assert sent.headers["x-request-id"] == "abc-1"
    odd = await server.http.get("/health", headers={"x-request-id": "a b,c"})
    made = [odd, await server.http.get("/none"), await server.chat(stream=True), await server.chat(n=5)]
    ids = {response.headers["x-request-id"] for response in made}
    assert len(ids) == 4
    assert all(request_id.startswith("req_") for request_id in ids)


async def test_engine_that_dies_while_it_replies(server: Server) -> None:
    server.engine.script = [server.ids("a"), FAIL]
    response = await server.chat()
    expected = {"message": "rank 1 left: it was killed", "type": "server_error", "param": None, "code": None}
    assert (response.status_code, response.json()) == (500, {"error": expected})
    response = await server.chat(stream=True)
    assert response.status_code == 200
    lines = response.text.rstrip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    assert f'"message":"{expected["message"]}"' in lines[-2]
    with pytest.raises(openai.APIError, match="rank 1 left: it was killed"):
        async for _ in await server.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        ):
            pass


async def test_unexpected_error_is_a_500_without_its_trace(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: object) -> ScriptedReply:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(server.engine, "submit", broken)
    with caplog.at_level(logging.ERROR):
        response = await server.chat()
    assert response.status_code == 500
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in response.text
    assert "x-request-id" in response.headers
    assert "secret detail" in caplog.text


async def test_silence_is_filled_with_comments(serve: Serve) -> None:
    async with serve(keepalive_s=0.02) as server:
        server.engine.script = [HOLD, server.ids("a", "<|user|>")]
        reader, writer = await server.connect()
        writer.write(request(body=chat_body(stream=True)))
        for _ in range(3):
            await asyncio.wait_for(reader.readuntil(b": keepalive\n\n"), 20)
        (await server.engine.submitted()).go_on()
        await reader.readuntil(b"data: [DONE]\n\n")
        writer.close()


async def test_comments_do_not_disturb_the_client(serve: Serve) -> None:
    async with serve(keepalive_s=0.01) as server:
        server.engine.script = [HOLD, server.ids("</think>", "a"), HOLD, server.ids("b", "<|user|>")]
        stream = await server.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        reply = await server.engine.submitted()
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if chunk.choices[0].delta.role or chunk.choices[0].delta.content == "a":
                asyncio.get_running_loop().call_later(0.05, reply.go_on)
        assert text == "ab"


async def test_stop_ends_running_replies_with_a_last_event(serve: Serve) -> None:
    async with serve() as server:
        server.engine.script = [HOLD]
        stream_reader, stream_writer = await server.connect()
        stream_writer.write(request(body=chat_body(stream=True)))
        await read_head(stream_reader)
        await server.engine.submitted()
        whole_reader, whole_writer = await server.connect()
        whole_writer.write(request(body=chat_body()))
        await server.engine.submitted()
        idle_reader, idle_writer = await server.connect()
        idle_writer.write(request("/health", method="GET"))
        await read_answer(idle_reader)
        server.stop.set()
        rest = await stream_reader.read()
        assert b'"message":"the server is stopping"' in rest
        assert b"data: [DONE]\n\n" in rest
        answer = await read_answer(whole_reader)
        assert (answer.status, answer.json()["error"]["type"]) == (503, "server_error")
        assert answer.headers["retry-after"] == "5"
        assert await closed(idle_reader)
        await server.task
        assert all(reply.cancelled.is_set() for reply in server.engine.replies)
        for writer in (stream_writer, whole_writer, idle_writer):
            writer.close()
        with pytest.raises(ConnectionRefusedError):
            await server.connect()
