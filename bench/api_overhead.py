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
from pathlib import Path
from typing import Any

from report import add_outputs, publish

SOURCE = Path(__file__).with_name("api_source.py")
PACE = 100.0
UNTHROTTLED_TOKENS = 4000
FIRST_TOKEN_REQUESTS = 40
READ_BYTES = 1 << 18
TARGETS = {"ratio": 0.98, "cpu_us_per_token": 30.0, "longest_hold_ms": 2.0}
"""For 8 streams of 100 tokens a second."""


@dataclasses.dataclass
class Measured:
    """One kind of load. Rates in tokens a second over all streams, times of the lock and the first token in ms."""

    streams: int
    pace: float
    own_tokens_per_s: float
    http_tokens_per_s: float
    ratio: float
    cpu_us_per_token: float
    own_cpu_us_per_token: float
    longest_hold_ms: float
    own_longest_hold_ms: float


class Source:
    """The measured process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SOURCE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = int(self._read()["port"])

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


async def read_stream(port: int, tokens: int) -> tuple[float, float, float]:
    """When a request was sent, its first token came, and its stream ended; every token must have come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=READ_BYTES)
    asked = time.perf_counter()
    writer.write(chat(tokens))
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


async def over_http(port: int, streams: int, tokens: int) -> dict[str, float]:
    """The same load as the source's own loop, through HTTP."""
    times = await asyncio.gather(*(read_stream(port, tokens) for _ in range(streams)))
    seconds = max(end for _, _, end in times) - min(first for _, first, _ in times)
    return {"tokens_per_s": streams * (tokens - 1) / seconds}


def measure(source: Source, streams: int, pace: float, seconds: float, rounds: int) -> Measured:
    """One kind of load, `rounds` times without and with HTTP in turns; medians, and the longest of all holds."""
    tokens = round(pace * seconds) if pace else UNTHROTTLED_TOKENS
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind in ("own", "http"):
            before = source.ask(do="figures", rate=pace)
            if kind == "own":
                rate = source.ask(do="own_loop", streams=streams, tokens=tokens)["tokens_per_s"]
            else:
                rate = asyncio.run(over_http(source.port, streams, tokens))["tokens_per_s"]
            after = source.ask(do="figures")
            taken.setdefault(f"{kind} rate", []).append(rate)
            cpu = (after["cpu_s"] - before["cpu_s"]) / (streams * tokens) * 1e6
            taken.setdefault(f"{kind} cpu", []).append(cpu)
            taken.setdefault(f"{kind} hold", []).append(after["longest_ms"])
    ratios = [http / own for http, own in zip(taken["http rate"], taken["own rate"], strict=True)]
    costs = [http - own for http, own in zip(taken["http cpu"], taken["own cpu"], strict=True)]
    return Measured(
        streams=streams,
        pace=pace,
        own_tokens_per_s=statistics.median(taken["own rate"]),
        http_tokens_per_s=statistics.median(taken["http rate"]),
        ratio=statistics.median(ratios),
        cpu_us_per_token=statistics.median(costs),
        own_cpu_us_per_token=statistics.median(taken["own cpu"]),
        longest_hold_ms=statistics.median(taken["http hold"]),
        own_longest_hold_ms=statistics.median(taken["own hold"]),
    )


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
        "| streams | tokens/s each | own loop, tokens/s | by HTTP | ratio | CPU, us a token | longest hold, ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for load in loads:
        pace = f"{load.pace:.0f}" if load.pace else "unthrottled"
        lines.append(
            f"| {load.streams} | {pace} | {load.own_tokens_per_s:,.0f} | {load.http_tokens_per_s:,.0f} |"
            f" {load.ratio:.4f} |"
            f" {load.cpu_us_per_token:.1f} (+ {load.own_cpu_us_per_token:.1f} own) |"
            f" {load.longest_hold_ms:.2f} ({load.own_longest_hold_ms:.2f} without HTTP) |"
        )
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
