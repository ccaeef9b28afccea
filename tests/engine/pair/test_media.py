# SPDX-License-Identifier: Apache-2.0
"""Two real ranks look at pictures and clips: rank 0 encodes, both answer; contents decide what is resumed."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import pathlib
from typing import Any

import pytest
from sparkpair.checkpoint.miniature import write_miniature

from tests.engine.agreeing import weaken
from tests.engine.media.files import clip, encoded, picture
from tests.engine.media.hostile import data_url
from tests.engine.pair.ranks import LOOPBACK, World, running

pytestmark = pytest.mark.pair


def exchange(world: World, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(LOOPBACK, world.port, timeout=60)
    connection.request("POST", path, json.dumps(body))
    response = connection.getresponse()
    found: dict[str, Any] = json.loads(response.read())
    connection.close()
    return response.status, found


def body(*media: bytes, words: str = "What is it?", **fields: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"type": kind, kind: {"url": data_url(data)}}
        for data in media
        for kind in ["video_url" if b"ftyp" in data[:16] else "image_url"]
    ]
    content = [*parts, {"type": "text", "text": words}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0, **fields}


def ask(world: World, asked: dict[str, Any]) -> tuple[str, int, int]:
    """The reply's text, the prompt's tokens, and how many of them were resumed."""
    status, found = exchange(world, "/v1/chat/completions", asked)
    assert status == 200, found
    message, usage = found["choices"][0]["message"], found["usage"]
    told = message.get("reasoning_content", "") + "|" + (message["content"] or "")
    return told, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


ONE, OTHER = (encoded(picture(700, 500, seed), "JPEG") for seed in (1, 2))
SMALL = encoded(picture(300, 200, 3), "PNG")
CLIP = clip(8, 4, 160, 120)


def test_a_reply_depends_on_the_picture_and_only_the_same_one_is_resumed(pair: World) -> None:
    first = ask(pair, body(ONE))
    assert first[1] > 450, "the picture takes several steps"
    assert first[2] == 0
    assert ask(pair, body(ONE)) == (first[0], first[1], first[1])
    other = ask(pair, body(OTHER))
    assert other[1] == first[1]
    assert other[2] < 64
    assert other[0] != first[0]
    longer = ask(pair, body(ONE, words="What is it? Say it in one word, please, and then say why."))
    assert longer[2] >= 448
    assert ask(pair, body(CLIP, ONE))[1] > first[1] + 60


def test_together_equals_alone_with_pictures_clips_and_text(pair: World) -> None:
    asked = [body(SMALL, CLIP), body(words="Tell me of rivers."), body(CLIP, words="And then?"), body(ONE, SMALL)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda one: ask(pair, one), asked))
    with running(pair.model, 1, "--cache-entries", "0") as alone:
        alone.start_all()
        assert [ask(alone, one)[:2] for one in asked] == [one[:2] for one in together]


def test_drafts_of_the_mtp_head_change_nothing_where_pictures_stand(tmp_path: pathlib.Path, pair: World) -> None:
    model = tmp_path / "agreeing"
    write_miniature(model, seed=1, overrides={})
    weaken(model, strength=0.1)
    with running(model, 2, "--parallel", "2", "--drafter", "mtp", "--draft-policy", "3") as world:
        world.start_all()
        for asked in (body(ONE), body(CLIP, SMALL, words="Go on.", temperature=0.8, seed=5)):
            serial = ask(world, {**asked, "draft": False})
            assert ask(world, asked)[0] == serial[0]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert len({told[0] for told in pool.map(lambda one: ask(world, one), [body(SMALL), body(SMALL)])}) == 1


def test_a_server_without_vision_says_so(pair: World) -> None:
    with running(pair.model, 1, "--no-vision") as world:
        world.start_all()
        status, found = exchange(world, "/v1/chat/completions", body(ONE))
        assert status == 400
        assert found["error"]["message"].startswith("messages[0].content[0]: this server has no vision")
