# SPDX-License-Identifier: Apache-2.0
"""Cases as requests to a running server, and its replies: what is scored is what any client of the API would get."""

from __future__ import annotations

import base64
import concurrent.futures
import functools
import io
import json
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import httpx
from PIL import Image

from training.cases import Case, Message, Said, Shown
from training.encode import CLIP_RATE
from training.scores import Result

# A reply may take as long as a queue of long prompts before it.
PATIENCE_S = 600.0

TOO_MANY = httpx.codes.TOO_MANY_REQUESTS

# Tokens that a think block may take beside the answer.
THINKING_ROOM = 320


def file_of(shown: Shown) -> tuple[str, bytes]:
    """What is shown as a file, and its media type: a PNG, or a Matroska clip without loss."""
    file = io.BytesIO()
    if shown.kind == "picture":
        Image.fromarray(shown.frames[0]).save(file, "PNG")
        return "image/png", file.getvalue()
    with av.open(file, "w", format="matroska") as output:
        stream = output.add_stream("ffv1", rate=Fraction(CLIP_RATE))
        stream.height, stream.width = shown.frames[0].shape[:2]
        stream.pix_fmt = "bgr0"
        for frame in shown.frames:
            for _ in range(round(shown.seconds * CLIP_RATE)):
                output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        output.mux(stream.encode(None))
    return "video/x-matroska", file.getvalue()


def messages_of(messages: Sequence[Message]) -> list[Message]:
    """Messages as the API takes them: pictures and clips as data URLs."""
    return [message | {"content": _content(message["content"])} for message in messages]


def _content(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return part
    kind, data = file_of(part["shown"])
    name = {"picture": "image_url", "clip": "video_url"}[part["shown"].kind]
    return {"type": name, name: {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}}


def request_of(case: Case) -> dict[str, Any]:
    """The request of a case, how to draw apart. A form that could be enforced is not: the model is to keep to it."""
    body: dict[str, Any] = {
        "messages": messages_of(case.messages),
        "max_tokens": case.max_tokens + (THINKING_ROOM if case.thinking else 0),
        "chat_template_kwargs": {"enable_thinking": case.thinking},
    }
    if case.effort is not None:
        body["reasoning_effort"] = case.effort
    if case.tools:
        body["tools"] = case.tools
    return body


def said_in(reply: dict[str, Any]) -> Said:
    """What a reply of the server says."""
    choice = reply["choices"][0]
    message = choice["message"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = tuple((function["name"], json.loads(function["arguments"])) for function in functions)
    ended = choice["finish_reason"] != "length"
    return Said(message.get("content") or "", message.get("reasoning_content") or "", calls, ended)


class Asking:
    """Asks the server at `url`; to be used in a `with`."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), timeout=PATIENCE_S)

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    @functools.cached_property
    def _model(self) -> str:
        return str(self._client.get("/v1/models").raise_for_status().json()["data"][0]["id"])

    def reply(self, case: Case, mode: str, seed: int) -> dict[str, Any]:
        """The server's reply to a case: in mode `greedy`, or `sampled` as the checkpoint says, with that seed.

        A server that has no room for it just now is asked again when it says so.
        """
        draw = {"temperature": 0.0} if mode == "greedy" else {"seed": seed}
        body = request_of(case) | {"model": self._model} | draw
        while (answer := self._client.post("/v1/chat/completions", json=body)).status_code == TOO_MANY:
            time.sleep(float(answer.headers["retry-after"]))
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def results(self, cases: Sequence[Case], modes: Sequence[str], seed: int, at_once: int) -> list[Result]:
        """A result for each case and mode, with some requests at once; each case has a seed of its own.

        A case is asked in all modes one after the other, so that a long prompt need not be read again.
        """

        def ask(number: int) -> list[Result]:
            case = cases[number]
            said = [said_in(self.reply(case, mode, seed * 1_000_000 + number)) for mode in modes]
            return [
                Result(case, mode, case.judge(one), one, doubtful=one != case.wanted)
                for mode, one in zip(modes, said, strict=True)
            ]

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return [result for some in pool.map(ask, range(len(cases))) for result in some]
