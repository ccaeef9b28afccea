# SPDX-License-Identifier: Apache-2.0
"""What the HTTP side costs: a stream's tokens a second against the source's own loop, side by side in one run.

    python bench/api_overhead.py [--seconds S] [--rounds N] [--json FILE] [--markdown FILE]

Every figure stands beside the same figure without HTTP, measured right before it on the same machine, because machines
differ and are busy. The source and the server run in one process, the client in another.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import add_outputs, publish

SOURCE = Path(__file__).with_name("api_source.py")
PACE = 100.0
UNTHROTTLED_TOKENS = 4000
FIRST_TOKEN_REQUESTS = 40
WARM_UP_TOKENS = 20
"""Taken right before every measurement, in the same way, and not counted: a virtual machine may have given back what it
did not use for a second, and code that was not run for ten takes milliseconds to run once, whatever it is.
"""
READ_BYTES = 1 << 18
KINDS = ("own", "bare", "http")
Ask = Callable[[int], bytes]
"""The bytes that ask for so many tokens."""

TARGETS = {"ratio": 0.98, "cpu_us_per_token": 30.0, "longest_hold_ms": 2.0}
"""For 8 streams of 100 tokens a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One way of taking the tokens. `tokens_per_s` of all streams; `cpu_us` is what the loop's thread computed for a
    token, `longest_hold_ms` how long it held the interpreter's lock at most.
    """

    tokens_per_s: float
    cpu_us: float
    longest_hold_ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One kind of load: by the source's own loop, by bare sockets and by HTTP; and what HTTP costs more than the first,
    which is what the target is about, and than the second, which is what is our own.
    """

    streams: int
    pace: float
    own: Side
    bare: Side
    http: Side
    ratio: float
    cpu_us_per_token: float
    cpu_us_over_bare: float


class Source:
    """The measured process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SOURCE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started = self._read()
        self.port, self.bare_port = int(started["port"]), int(started["bare_port"])

    def ask(self, **command: Any) -> dict[str, float]:
        """Send a command and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{SOURCE.name} ended with exit code {self._process.wait()}; its message is above")
        answer: dict[str, float] = json.loads(line)
        return answer


def chat(tokens: int) -> bytes:
    """A streamed chat request."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": tokens}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def line(tokens: int) -> bytes:
    """The same of the plain connection."""
    return b"%d\n" % tokens


async def read_stream(port: int, tokens: int, ask: Ask = chat) -> tuple[float, float, float]:
    """When a request was sent, its first token came, and its stream ended; every token must have come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_BYTES)
    asked = time.perf_counter()
    writer.write(ask(tokens))
    first, came, tail = 0.0, 0, b""
    while b"data: [DONE]" not in tail:
        piece = await reader.read(READ_BYTES)
        if not piece:
            raise SystemExit("the server closed a stream before its end")
        data = tail + piece
        # What is cut at the end is counted with the next piece.
        came += data.count(b'"reasoning_content"') - tail.count(b'"reasoning_content"')
        if came and not first:
            first = time.perf_counter()
        tail = data[-40:]
    ended = time.perf_counter()
    writer.close()
    await writer.wait_closed()
    if came != tokens:
        raise SystemExit(f"{came} tokens came of {tokens}")
    return asked, first, ended


async def over_sockets(port: int, streams: int, tokens: int, ask: Ask) -> float:
    """Tokens a second of so many streams at once."""
    times = await asyncio.gather(*(read_stream(port, tokens, ask) for _ in range(streams)))
    seconds = max(end for _, _, end in times) - min(first for _, first, _ in times)
    return streams * (tokens - 1) / seconds


def take(source: Source, kind: str, streams: int, pace: float, tokens: int) -> Side:
    """Take the tokens of all streams in one of KINDS."""
    port, ask = (source.port, chat) if kind == "http" else (source.bare_port, line)

    def rate_of(count: int) -> float:
        if kind == "own":
            return source.ask(do="own_loop", streams=streams, tokens=count)["tokens_per_s"]
        return asyncio.run(over_sockets(port, streams, count, ask))

    source.ask(do="figures", rate=pace)
    rate_of(WARM_UP_TOKENS)
    before = source.ask(do="figures")
    rate = rate_of(tokens)
    after = source.ask(do="figures")
    return Side(rate, (after["cpu_s"] - before["cpu_s"]) / (streams * tokens) * 1e6, after["longest_ms"])


def measure(source: Source, streams: int, pace: float, seconds: float, rounds: int) -> Measured:
    """One kind of load, `rounds` times in every way by turns; medians."""
    tokens = round(pace * seconds) if pace else UNTHROTTLED_TOKENS
    taken = [{kind: take(source, kind, streams, pace, tokens) for kind in KINDS} for _ in range(rounds)]
    sides = {kind: median_side([one[kind] for one in taken]) for kind in KINDS}
    return Measured(
        streams=streams,
        pace=pace,
        **sides,
        ratio=statistics.median(one["http"].tokens_per_s / one["own"].tokens_per_s for one in taken),
        cpu_us_per_token=statistics.median(one["http"].cpu_us - one["own"].cpu_us for one in taken),
        cpu_us_over_bare=statistics.median(one["http"].cpu_us - one["bare"].cpu_us for one in taken),
    )


def median_side(sides: list[Side]) -> Side:
    """The median of every figure."""
    names = [field.name for field in dataclasses.fields(Side)]
    return Side(*(statistics.median(getattr(side, name) for side in sides) for name in names))


def first_token(source: Source) -> dict[str, float]:
    """Milliseconds from a request to its first token, one request at a time: medians."""
    own, http = [], []
    source.ask(do="figures", rate=0.0)
    for _ in range(FIRST_TOKEN_REQUESTS):
        own.append(source.ask(do="own_loop", streams=1, tokens=2)["first_ms"])
        asked, first, _ = asyncio.run(read_stream(source.port, 2))
        http.append((first - asked) * 1000)
    own_ms, http_ms = statistics.median(own), statistics.median(http)
    return {"own_ms": own_ms, "http_ms": http_ms, "added_ms": http_ms - own_ms}


def markdown(loads: list[Measured], first: dict[str, float]) -> str:
    """The figures as a table for people."""
    lines = [
        "| streams | tokens/s each | own loop, tokens/s | by HTTP | ratio "
        "| CPU a token, us: own loop | bare sockets | HTTP | HTTP - own | HTTP - bare "
        "| longest hold, ms: own loop | bare sockets | HTTP |",
        "|" + " --- |" * 13,
    ]
    for load in loads:
        sides = (load.own, load.bare, load.http)
        cells = [
            str(load.streams),
            f"{load.pace:.0f}" if load.pace else "unthrottled",
            f"{load.own.tokens_per_s:,.0f}",
            f"{load.http.tokens_per_s:,.0f}",
            f"{load.ratio:.4f}",
            *(f"{side.cpu_us:.1f}" for side in sides),
            f"{load.cpu_us_per_token:.1f}",
            f"{load.cpu_us_over_bare:.1f}",
            *(f"{side.longest_hold_ms:.2f}" for side in sides),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines.append(
        f"Time to first token: {first['http_ms']:.2f} ms, {first['own_ms']:.2f} ms without HTTP:"
        f" {first['added_ms']:.2f} ms added."
    )
    wanted = "ratio at least {ratio}, at most {cpu_us_per_token:.0f} us and {longest_hold_ms:.0f} ms".format(**TARGETS)
    lines.append(f"Wanted with 8 streams of {PACE:.0f} tokens/s: {wanted}.")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and report. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a paced stream (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of every load (default %(default)s)")
    add_outputs(parser)
    options = parser.parse_args()
    source = Source()
    try:
        loads = [
            measure(source, streams, pace, options.seconds, options.rounds)
            for pace in (PACE, 0.0)
            for streams in (1, 8)
        ]
        first = first_token(source)
    finally:
        source.close()
    figures = {"loads": [dataclasses.asdict(load) for load in loads], "first_token": first, "wanted": TARGETS}
    publish(options, markdown(loads, first), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
