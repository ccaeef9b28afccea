# SPDX-License-Identifier: Apache-2.0
"""Pictures and clips in requests: into the prompt where they belong, or refused by place and reason."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import pathlib
from typing import Any

import httpx
import pytest
from sparkpair.media.limits import MediaLimits
from sparkpair.media.prepared import prepare

from tests.engine.api.conftest import Serve, Server
from tests.engine.api.scripted import HOLD
from tests.engine.media.files import clip, encoded, picture
from tests.engine.media.hostile import CLIPS, PICTURES, data_url

LIMITS = MediaLimits()
ONE, OTHER = encoded(picture(100, 100, 1)), encoded(picture(140, 112, 2), "JPEG")
TOKENS_ONE, TOKENS_OTHER = 16, 20
CLIP = clip(8, 4)
KEYS = {"message", "type", "param", "code"}


def image(data: bytes = ONE, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data), **fields}}


def video(data: bytes = CLIP) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(data, "video/mp4")}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


async def refusal(server: Server, messages: list[dict[str, Any]], **fields: Any) -> str:
    response = await server.chat(messages=messages, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == KEYS
    assert (error["type"], error["param"]) == ("invalid_request_error", "messages")
    return str(error["message"])


@pytest.fixture
async def seeing(serve: Serve) -> Any:
    async with serve(engine={"context_length": 100_000}, vision=True) as server:
        yield server


async def test_a_picture_stands_in_the_prompt_where_its_part_stands(seeing: Server) -> None:
    messages = user(text("Look: "), image(), text(" and "), image(OTHER), text("<|image|>?"))
    response = await seeing.chat(messages=messages, reasoning_effort="none")
    assert response.status_code == 200
    asked = seeing.engine.last
    wanted = seeing.ids(
        "[gMASK]", "<sop>", "<|user|>", "Look: ",
        "<|begin_of_image|>", *["<|image|>"] * TOKENS_ONE, "<|end_of_image|>", " and ",
        "<|begin_of_image|>", *["<|image|>"] * TOKENS_OTHER, "<|end_of_image|>",
    )  # fmt: skip
    quoted = seeing.tokenizer.encode_text("<|image|>?")
    wanted += quoted + seeing.ids("<|assistant|>", "<think>", "</think>")
    assert list(asked.prompt_ids) == wanted
    assert response.json()["usage"]["prompt_tokens"] == len(wanted)
    for part, data, count in zip(asked.media, (ONE, OTHER), (TOKENS_ONE, TOKENS_OTHER), strict=True):
        prepared = prepare("picture", data, LIMITS)
        assert part.digest == prepared.digest
        assert (part.grid, part.patches.tobytes()) == (prepared.grid, prepared.patches.tobytes())
        assert len(part.positions) == count
        assert {wanted[position] for position in part.positions} == {seeing.tokenizer.marker_ids["<|image|>"]}


async def test_a_clip_stands_pair_by_pair_with_its_seconds(seeing: Server) -> None:
    await seeing.chat(messages=user(video(), text("What happens?")), reasoning_effort="none")
    asked = seeing.engine.last
    (part,) = asked.media
    count = len(part.positions) // 2
    assert part.grid[0] == 2
    pair = ["<|begin_of_image|>", *["<|image|>"] * count, "<|end_of_image|>"]
    start = ["[gMASK]", "<sop>", "<|user|>", "<|begin_of_video|>"]
    inside = [*pair, "0.0 seconds", *pair, "1.0 seconds", "<|end_of_video|>"]
    wanted = seeing.ids(*start, *inside, "What happens?", "<|assistant|>", "<think>", "</think>")
    assert list(asked.prompt_ids) == wanted


async def test_results_of_functions_may_show_pictures_in_whatever_order_they_came(seeing: Server) -> None:
    calls = [{"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}} for name in ("a", "b")]
    messages = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": [image(OTHER), text("second")]},
        {"role": "tool", "tool_call_id": "a", "content": [text("first"), image(ONE)]},
    ]
    await seeing.chat(messages=messages)
    asked = seeing.engine.last
    # The template puts results into the order of their calls.
    assert [part.digest for part in asked.media] == [prepare("picture", data, LIMITS).digest for data in (ONE, OTHER)]
    assert [len(part.positions) for part in asked.media] == [TOKENS_ONE, TOKENS_OTHER]
    assert asked.media[0].positions[-1] < asked.media[1].positions[0]


async def test_the_same_content_is_the_same_prompt_and_another_is_not(seeing: Server) -> None:
    requests = []
    again = encoded(picture(100, 100, 1), "PNG", compress_level=0)
    for data in (ONE, again, encoded(picture(100, 100, 3))):
        await seeing.chat(messages=user(image(data)))
        requests.append(seeing.engine.last)
    assert requests[0].prompt_ids == requests[1].prompt_ids == requests[2].prompt_ids
    assert requests[0].content_ids == requests[1].content_ids != requests[2].content_ids
    assert requests[0].content_ids is requests[0].content_ids, "a prompt is asked for them at every step that keeps it"


async def test_tokens_are_counted_alike_everywhere(seeing: Server) -> None:
    messages = user(text("Look"), image(), video())
    counted = (await seeing.http.post("/tokenize", json={"messages": messages})).json()
    await seeing.chat(messages=messages)
    assert tuple(counted["tokens"]) == seeing.engine.last.prompt_ids
    source = {"type": "base64", "media_type": "image/png", "data": data_url(ONE).partition(",")[2]}
    body = {"model": "GLM-5.3-Flash", "messages": user(text("Look"), {"type": "image", "source": source})}
    counted = (await seeing.http.post("/v1/messages/count_tokens", json=body)).json()
    used = (await seeing.http.post("/v1/messages", json={**body, "max_tokens": 9})).json()["usage"]
    assert counted["input_tokens"] == used["input_tokens"] == len(seeing.engine.last.prompt_ids)
    assert len(seeing.engine.last.media) == 1


async def test_every_dialect_makes_the_same_prompt_of_a_picture(seeing: Server) -> None:
    url = data_url(ONE)
    await seeing.chat(messages=user(text("Look"), image()), reasoning_effort="none")
    wanted = seeing.engine.last
    content = [{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    body = {"input": [{"role": "user", "content": content}], "reasoning": {"effort": "none"}}
    assert (await seeing.http.post("/v1/responses", json=body)).status_code == 200
    assert seeing.engine.last.content_ids == wanted.content_ids
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    body = {
        "model": "GLM-5.3-Flash",
        "max_tokens": 9,
        "messages": user(text("Look"), {"type": "image", "source": source}),
    }
    assert (await seeing.http.post("/v1/messages", json=body)).status_code == 200
    assert seeing.engine.last.content_ids == wanted.content_ids
    source["data"] = url
    refused = await seeing.http.post("/v1/messages", json=body)
    assert "not valid base64" in refused.json()["error"]["message"], "a data URL is none, whether it is known or not"
    body["messages"][0]["content"][1]["source"] = {"type": "url", "url": url}
    assert (await seeing.http.post("/v1/messages", json=body)).status_code == 200
    assert seeing.engine.last.content_ids == wanted.content_ids
    await seeing.chat(messages=user(video()), reasoning_effort="none")
    wanted = seeing.engine.last
    content = [{"type": "input_video", "video_url": data_url(CLIP)}]
    body = {"input": [{"role": "user", "content": content}], "reasoning": {"effort": "none"}}
    assert (await seeing.http.post("/v1/responses", json=body)).status_code == 200
    assert seeing.engine.last.content_ids == wanted.content_ids


async def test_a_stored_response_goes_on_with_its_picture(seeing: Server) -> None:
    content = [{"type": "input_image", "image_url": data_url(ONE)}]
    first = (await seeing.http.post("/v1/responses", json={"input": [{"role": "user", "content": content}]})).json()
    body = {"input": "And?", "previous_response_id": first["id"]}
    assert (await seeing.http.post("/v1/responses", json=body)).status_code == 200
    assert [len(part.positions) for part in seeing.engine.last.media] == [TOKENS_ONE]


async def test_a_hostile_file_is_a_refusal_that_names_message_and_part(seeing: Server) -> None:
    for kind, corpus in (("image_url", PICTURES), ("video_url", CLIPS)):
        for number, (name, (url, reason)) in enumerate(corpus.items()):
            messages = [{"role": "user", "content": "Hi"}, *user(text("Look"), {"type": kind, kind: {"url": url}})]
            told = await refusal(seeing, messages, stream=bool(number % 2))
            assert told.startswith("messages[1].content[1]: "), name
            assert reason in told, name
    assert seeing.engine.replies == []
    assert (await seeing.chat(messages=user(image(), video()))).status_code == 200


async def test_refusals_name_the_place_in_the_words_of_each_dialect(seeing: Server) -> None:
    url = PICTURES["svg"][0]
    items = [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": [{"type": "input_image", "image_url": url}]},
    ]
    error = (await seeing.http.post("/v1/responses", json={"input": items, "instructions": "Be"})).json()["error"]
    assert error["message"].startswith("input[1].content[0]: the picture is not a JPEG")
    assert error["param"] == "input"
    source = {"type": "base64", "media_type": "image/svg+xml", "data": url.partition(",")[2]}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [text("Here"), result]},
    ]
    body = {"model": "GLM-5.3-Flash", "max_tokens": 9, "system": "Be", "messages": messages}
    error = (await seeing.http.post("/v1/messages", json=body)).json()["error"]
    assert error["message"].startswith("messages[2].content[1].content[0]: the picture is not a JPEG")


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image_url"}, "content[0].image_url: expected an object with a url"),
        ({"type": "image_url", "image_url": {}}, "content[0].image_url: expected an object with a url"),
        ({"type": "image_url", "image_url": {"url": 5}}, "content[0].image_url: expected an object with a url"),
        ({"type": "video_url", "video_url": []}, "content[0].video_url: expected an object with a url"),
        (image(detail="original"), "image_url.detail: expected one of auto, low, high"),
        (image(detail=["low"]), "image_url.detail: expected one of auto, low, high"),
        ({"type": "input_audio", "input_audio": {}}, "parts of type input_audio are not supported"),
        ({"type": "image_url", "image_url": {"url": "iVBORw0KGgo="}}, "this server fetches no URLs"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "this server fetches no URLs"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "this server fetches no URLs"),
        ({"type": "image_url", "image_url": ""}, "this server fetches no URLs"),
    ],
    ids=str,
)
async def test_a_malformed_part_is_refused(seeing: Server, part: dict[str, Any], reason: str) -> None:
    assert reason in await refusal(seeing, user(part))


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
async def test_media_stand_in_user_and_tool_messages_only(seeing: Server, role: str) -> None:
    told = await refusal(seeing, [{"role": role, "content": [image()]}, {"role": "user", "content": "Hi"}])
    assert told == "messages[0].content[0]: pictures and clips may only stand in user and tool messages"


async def test_without_vision_a_users_picture_is_refused_and_a_results_is_told_of(server: Server) -> None:
    for part, kind in ((image(), "picture"), (video(), "clip")):
        told = await refusal(server, user(part))
        assert told == f"messages[0].content[0]: this server has no vision, so it cannot look at a {kind}"
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [text("Seen: "), image()]},
    ]
    assert (await server.chat(messages=messages)).status_code == 200
    told_of = server.ids("Seen: [picture left out: this server cannot look at it]", "</tool_response>")
    assert server.engine.last.media == ()
    prompt = list(server.engine.last.prompt_ids)
    assert any(prompt[at : at + len(told_of)] == told_of for at in range(len(prompt)))


async def test_a_request_has_its_limits(serve: Serve) -> None:
    limits = MediaLimits(pictures=3, picture_tokens=100, picture_tokens_together=120, clips=1, clip_bytes=5000)
    async with serve(engine={"context_length": 100_000}, vision=True, media=limits) as server:
        big = image(encoded(picture(900, 900), "JPEG"))
        for count, tokens in ((1, 100), (2, 60), (3, 40)):
            await server.chat(messages=user(*[big] * count))
            found = [len(part.positions) for part in server.engine.last.media]
            assert len(found) == count
            assert all(tokens * 0.7 < one <= tokens for one in found)
        assert "content[3]: a request may have at most 3 pictures" in await refusal(server, user(*[image()] * 4))
        assert "content[1]: a request may have at most 1 clip" in await refusal(server, user(video(), video()))
        assert "bytes; at most 5000 are allowed" in await refusal(server, user(video(clip(40, 4, 320, 240))))
    async with serve(vision=True, media=dataclasses.replace(LIMITS, picture_bytes_together=2 * len(ONE))) as server:
        assert (await server.chat(messages=user(image(), image()))).status_code == 200
        told = await refusal(server, user(image(), image(), image()))
        assert "content[2]: the pictures have more than" in told


async def test_a_picture_of_low_detail_takes_fewer_tokens(seeing: Server) -> None:
    sizes = []
    for detail in ("low", "auto", "high"):
        await seeing.chat(messages=user(image(encoded(picture(1000, 1000), "JPEG"), detail=detail)))
        sizes.append(len(seeing.engine.last.media[0].positions))
    assert sizes == [256, 1296, 1296]


async def test_a_prompt_that_media_make_too_long_is_refused(serve: Serve) -> None:
    async with serve(engine={"context_length": 200}, vision=True) as server:
        response = await server.chat(messages=user(image(encoded(picture(1000, 1000)))))
        assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_what_is_prepared_is_bounded_and_comes_free_with_its_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Room for two such pictures, none of which is kept for later.
    monkeypatch.setattr("sparkpair.api.media.PREPARED_BYTES", 2 * 2048 * 4704)
    monkeypatch.setattr("sparkpair.api.media.MOST_KEPT", 0)
    async with serve([HOLD], engine={"context_length": 100_000}, vision=True) as server:
        large = [user(image(encoded(picture(1400, 1100, seed), "JPEG"))) for seed in range(3)]
        running = [asyncio.create_task(server.chat(messages=messages)) for messages in large[:1]]
        await asyncio.wait_for(server.engine.submitted(), 30)
        running.append(asyncio.create_task(server.chat(messages=large[1])))
        while len(server.engine.replies) < 2:
            await asyncio.wait_for(server.engine.submitted(), 30)
        full = await server.chat(messages=large[2])
        assert (full.status_code, full.headers["retry-after"]) == (429, "5")
        assert "pictures and clips" in full.json()["error"]["message"]
        for reply in server.engine.replies:
            reply.cancel()
        await asyncio.gather(*running)
        server.engine.replies.clear()
        server.engine.script = []
        assert (await server.chat(messages=large[2])).status_code == 200


async def test_a_picture_that_came_before_is_not_decoded_again(seeing: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    await seeing.chat(messages=user(image()))
    first = seeing.engine.last
    monkeypatch.setattr("sparkpair.media.decoders.Decoders.prepare", None)
    assert (await seeing.chat(messages=user(text("Again"), image()))).status_code == 200
    assert seeing.engine.last.media[0].patches is first.media[0].patches


async def test_streams_go_on_while_a_decoder_is_stuck_and_the_stuck_one_ends(serve: Serve) -> None:
    slow = dataclasses.replace(LIMITS, picture_decode_s=0.3, picture_bytes=2**28)
    async with serve(engine={"context_length": 100_000}, vision=True, media=slow) as server:
        stuck = asyncio.create_task(server.chat(messages=user(image(encoded(picture(4096, 4096), compress_level=1)))))
        await asyncio.sleep(0)
        assert (await server.chat()).status_code == 200
        assert "takes longer than 0.3 s to decode" in (await stuck).json()["error"]["message"]
        assert (await server.chat(messages=user(image()))).status_code == 200


async def test_a_client_that_leaves_while_its_clip_is_prepared_is_not_waited_for(
    seeing: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def never(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr("sparkpair.api.media.MediaDesk._prepared", never)
    asking = asyncio.create_task(seeing.chat(messages=user(video())))
    await begun.wait()
    asking.cancel()
    await asyncio.wait_for(ended.wait(), 10)
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert seeing.engine.replies == []


async def test_caller_bytes_are_in_no_error(seeing: Server) -> None:
    told = await refusal(seeing, user({"type": "image_url", "image_url": {"url": "data:image/png;base64,c2VjcmV0"}}))
    assert "c2Vj" not in told
    response: httpx.Response = await seeing.chat(messages=user({"type": "image_url", "image_url": "data:secret"}))
    assert "secret" not in response.text


def resident(pid: int | str) -> int:
    """KiB of a process in memory."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


async def test_memory_is_flat_over_200_requests_with_pictures_and_clips(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkpair.api.media.MOST_KEPT", 0)
    messages = user(image(encoded(picture(500, 400), "JPEG")), video(clip(20, 10, 160, 120)), text("?"))
    async with serve(engine={"context_length": 100_000}, vision=True) as server:
        sizes = []
        for number in range(240):
            assert (await server.chat(messages=messages)).status_code == 200
            server.engine.replies.clear()
            if number in (39, 239):
                gc.collect()
                children = pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")
                decoders = [pid for file in children for pid in file.read_text(encoding="ascii").split()]
                assert decoders
                sizes.append(sum(map(resident, decoders)) + resident("self"))
    # A picture that stayed would be 1 MiB each time.
    assert sizes[1] - sizes[0] < 12 * 1024, sizes
