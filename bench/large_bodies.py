# SPDX-License-Identifier: Apache-2.0
"""What a large request costs those who are being served: the gaps of a stream of tokens while large bodies come.

    python bench/large_bodies.py [--rounds N] [--json FILE] [--markdown FILE]

A source of tokens with the real server in front of it, as in api_overhead.py; the client and the sender of bodies are
another process. The gaps without any body, taken in the same run, say what the machine itself is worth.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import dataclasses
import http.client
import io
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from api_overhead import PACE, READ_BYTES, Source, chat
from PIL import Image
from report import add_outputs, publish

MIB = 1 << 20
TOKENS = 100_000
"""Longer than anything here takes; the stream is left in the end."""

QUIET_S = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Gaps:
    """What a stream saw meanwhile, in milliseconds; `answer_s` is how long the large request took, in seconds."""

    mib: float
    answer_s: float
    median_ms: float
    longest_ms: float


def pictures() -> tuple[str, bytes]:
    """Seven pictures of 9 MiB: small ones, with bytes behind their end that no decoder looks at."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(file, "PNG")
    picture = base64.b64encode(file.getvalue().ljust(9 * MIB, b"\x01")).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    return "/v1/chat/completions", body([part] * 7)


def clip() -> tuple[str, bytes]:
    """One clip of 60 MiB, which is none: what matters here is how it gets to its decoder."""
    url = "data:video/mp4;base64," + base64.b64encode(bytes(60 * MIB)).decode()
    return "/v1/chat/completions", body([{"type": "video_url", "video_url": {"url": url}}])


def text() -> tuple[str, bytes]:
    """A book in one message, with escapes and more than ASCII."""
    choose = random.Random(1)
    words = ["the ", "river\n", "žluťoučký ", '"kůň" ', "\\path ", "runs ", "삼 "]
    return "/v1/chat/completions", body("".join(choose.choices(words, k=300_000)))


def history() -> tuple[str, bytes]:
    """A conversation of many turns."""
    turns = [
        {"role": ("user", "assistant")[n % 2], "content": f"Turn {n}: what a day it was. " * 4} for n in range(20_000)
    ]
    return "/v1/chat/completions", json.dumps({"messages": turns, "max_tokens": 1}).encode()


def ids() -> tuple[str, bytes]:
    """A prompt of a million token ids."""
    return "/v1/completions", json.dumps({"prompt": list(range(5, 1005)) * 1000, "max_tokens": 1}).encode()


def values() -> tuple[str, bytes]:
    """What nobody sends who means well: millions of empty lists."""
    return "/v1/chat/completions", b'{"messages":[],"x":[' + b"[]," * (30 * MIB // 3) + b"0]}"


KINDS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "nothing": lambda: ("", b""),
    "pictures": pictures,
    "clip": clip,
    "text": text,
    "history": history,
    "token ids": ids,
    "empty lists": values,
}


def body(content: Any) -> bytes:
    """A chat request with one message."""
    return json.dumps(
        {"messages": [{"role": "user", "content": content}], "max_tokens": 1}, ensure_ascii=False
    ).encode()


def send(port: int, path: str, large: bytes) -> tuple[float, int]:
    """Send a body; how long the answer took, and its status."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", path, large)
    response = connection.getresponse()
    response.read()
    connection.close()
    return time.perf_counter() - started, response.status


async def gaps_while(port: int, path: str, large: bytes) -> Gaps:
    """The gaps of a stream while a body is sent and answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_BYTES)
    writer.write(chat(TOKENS))
    while b'"reasoning_content"' not in await reader.read(READ_BYTES):
        pass
    sending = asyncio.create_task(
        asyncio.to_thread(send, port, path, large) if large else asyncio.sleep(QUIET_S, (QUIET_S, 200))
    )
    gaps, last = [], time.perf_counter()
    while not sending.done():
        await reader.read(READ_BYTES)
        now = time.perf_counter()
        gaps.append((now - last) * 1000)
        last = now
    seconds, status = await sending
    if status not in (200, 400):
        raise SystemExit(f"the body was answered with {status}")
    writer.close()
    await writer.wait_closed()
    return Gaps(len(large) / MIB, seconds, statistics.median(gaps), max(gaps))


def markdown(measured: dict[str, Gaps]) -> str:
    """The figures as a table for people."""
    lines = ["| body | MiB | answered in | gaps of the stream: median | longest |", "|" + " --- |" * 5]
    for name, gaps in measured.items():
        lines.append(
            f"| {name} | {gaps.mib:.1f} | {gaps.answer_s:.2f} s | {gaps.median_ms:.1f} ms | {gaps.longest_ms:.1f} ms |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and report. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=5, help="repetitions of every body; medians (default %(default)s)"
    )
    add_outputs(parser)
    options = parser.parse_args()
    bodies = {name: make() for name, make in KINDS.items()}
    source = Source()
    try:
        source.ask(do="figures", rate=PACE)
        taken: dict[str, list[Gaps]] = {name: [] for name in bodies}
        for _ in range(options.rounds):
            for name, (path, large) in bodies.items():
                taken[name].append(asyncio.run(gaps_while(source.port, path, large)))
    finally:
        source.close()
    names = [field.name for field in dataclasses.fields(Gaps)]
    measured = {
        name: Gaps(*(statistics.median(getattr(one, field) for one in rounds) for field in names))
        for name, rounds in taken.items()
    }
    figures = {name: dataclasses.asdict(gaps) for name, gaps in measured.items()}
    publish(options, markdown(measured), {"bodies": figures, "pace": PACE})
    return 0


if __name__ == "__main__":
    sys.exit(main())
