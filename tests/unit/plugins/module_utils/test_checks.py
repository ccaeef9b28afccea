# SPDX-License-Identifier: Apache-2.0
"""Every check of a live endpoint can fail, says why, and asks a random model only for what the server sees to."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _checks


def reply(content: Any = "x", cached: int = 0, **message: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [{"message": {"content": content, **message}}], "usage": usage}


def verdicts(answer: Any, **options: Any) -> dict[str, _checks.Verdict]:
    usual = {"trained": True, "pictures": True, "haystack_words": 100}
    return {one.name: one for one in _checks.run(lambda body: answer(body), **{**usual, **options})}


def call(arguments: str, name: str = "forecast") -> dict[str, Any]:
    return reply(None, tool_calls=[{"function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("needle", reply("I saw none"), "in 100 words the passphrase was not found; the answer was 'I saw none'"),
        ("function call", reply("It rains."), "0 functions were called instead of one"),
        ("function call", call('{"city": "Oslo", "days": "3"}'), "the arguments have other types"),
        ("function call", call("{}", name="weather"), "the function weather was called, which there is not"),
        ("function call", call("{city"), "the arguments are no JSON object"),
        ("structured output", reply('{"city": "Oslo"}'), "the reply does not follow its schema"),
        ("structured output", reply("Oslo"), "the reply is no JSON object: 'Oslo'"),
        ("picture", reply("blue"), "a red picture was called 'blue'"),
        ("prompt reuse", reply(cached=49), "49 of 100 prompt tokens were kept"),
        ("needle", {"choices": []}, "the reply is not what the API says"),
    ],
)
def test_a_wrong_answer_fails_the_check_with_what_was_wrong(name: str, answer: dict[str, Any], words: str) -> None:
    found = verdicts(lambda body: answer)[name]
    assert found.verdict == "failed"
    assert words in found.words


def test_replies_that_change_beside_others_are_told() -> None:
    asked: list[str] = []

    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        text = json.dumps(body)
        asked.append(text)
        return reply(str(asked.count(text)))

    assert "4 of 4 replies differ" in verdicts(answer)["alone and together"].words


def test_a_random_model_is_asked_only_for_what_the_server_sees_to() -> None:
    found = verdicts(lambda body: reply(), trained=False)
    skipped = {name for name, one in found.items() if one.verdict == "skipped"}
    assert skipped == {"needle", "picture", "function call"}


def test_what_the_server_does_not_offer_is_skipped_with_what_it_said() -> None:
    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        if "response_format" in body:
            raise _checks.NotOffered("only type text is supported by this engine")
        return reply()

    found = verdicts(answer)["structured output"]
    assert found.verdict == "skipped"
    assert "only type text" in found.words


def test_the_picture_is_a_red_square() -> None:
    data = _checks.red_square(4)
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (4, 4)
    begin = data.index(b"IDAT") + 4
    assert zlib.decompress(data[begin:]) == (b"\0" + b"\xff\0\0" * 4) * 4
