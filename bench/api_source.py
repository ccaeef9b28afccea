# SPDX-License-Identifier: Apache-2.0
"""The measured side of api_overhead.py: an engine that is nothing but a source of tokens, and a server in front of it.

Runs as a process of its own, so that the client's work is not counted. Reads one JSON object a line from its input and
answers each with one on its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sparkpair.api.app import create_app
from sparkpair.api.options import ApiOptions
from sparkpair.api.server import serve_http
from sparkpair.checkpoint.miniature_text import write_tokenizer
from sparkpair.request import (
    EngineHealth,
    Event,
    FinishedEvent,
    FinishReason,
    GenerationRequest,
    RankStep,
    ReplyStats,
    TokensEvent,
)

VOCABULARY = 1536
TOKEN = 300
"""A plain word piece, so that every token becomes a piece of text."""

LAST_CHUNK = b"data: [DONE]\n\n"
CHUNK = b'c8\r\ndata: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1700000000,\
"model":"source","choices":[{"index":0,"delta":{"reasoning_content":"the "},"finish_reason":null}]}\n\n\r\n'
"""What the server writes for a token, in size and form."""

LOOK_S = 0.0002
SWITCH_S = 0.0001
"""The interpreter gives its lock away after this at the next chance, so that what is seen are the holds without one."""


class SourceReply:
    """One reply of the source."""

    def __init__(self, request: GenerationRequest, source: Source) -> None:
        self._request = request
        self._source = source
        self._tokens: asyncio.Queue[int | None] = asyncio.Queue()
        self._cancelled = False

    def cancel(self) -> None:
        """See request.Reply."""
        self._cancelled = True
        self._tokens.put_nowait(None)

    def deliver(self) -> None:
        """One token more; called in the event loop."""
        self._tokens.put_nowait(TOKEN)

    async def events(self) -> AsyncIterator[Event]:
        """See request.Reply: one token an event."""
        count = 0
        self._source.replies.add(self)
        try:
            while count < self._request.max_new_tokens and not self._cancelled:
                if self._source.rate:
                    if await self._tokens.get() is None:
                        break
                else:
                    await asyncio.sleep(0)
                count += 1
                yield TokensEvent((TOKEN,))
        finally:
            self._source.replies.discard(self)
        reason: FinishReason = "cancelled" if self._cancelled else "length"
        steps = (RankStep(0, count), RankStep(1, count))
        yield FinishedEvent(reason, ReplyStats(len(self._request.prompt_ids), 0, count, 0.0, 0.0, 0.0, steps))


class Source:
    """Implements request.Engine. With a rate, a thread makes a step so often and every reply gets a token from it, as
    from an engine; without, replies get tokens as fast as they take them.
    """

    context_length = 1 << 20
    world_size = 2

    def __init__(self) -> None:
        self.rate = 0.0
        self.replies: set[SourceReply] = set()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._step, name="steps", daemon=True).start()

    def submit(self, request: GenerationRequest) -> SourceReply:
        """See request.Engine."""
        return SourceReply(request, self)

    def health(self) -> EngineHealth:
        """See request.Engine."""
        return EngineHealth.nothing(8)

    def _step(self) -> None:
        due = time.perf_counter()
        while True:
            due = max(due + (1 / self.rate if self.rate else 0.01), time.perf_counter())
            time.sleep(due - time.perf_counter() if due > time.perf_counter() else 0)
            if self.rate:
                with contextlib.suppress(RuntimeError):  # the loop is closed when the benchmark ends
                    self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        for reply in self.replies:
            reply.deliver()


class LockWatch:
    """Measures how late a thread gets the interpreter when it asks for it, which is how long the loop held its lock.

    On a busy machine threads also wait for a processor, and that is nobody's hold: what the system says this thread
    waited for one is taken off, and being late counts only as far as the loop's thread was computing meanwhile.
    """

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._longest = 0.0
        threading.Thread(target=self._look, name="lock watch", daemon=True).start()

    def _look(self) -> None:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as statistics:
            while True:
                queued, computed, before = _queued(statistics), time.clock_gettime(self._clock), time.perf_counter()
                time.sleep(LOOK_S)
                late = time.perf_counter() - before - LOOK_S
                computed, queued = time.clock_gettime(self._clock) - computed, _queued(statistics) - queued
                self._longest = max(self._longest, min(late - queued, computed))

    def since_last(self) -> float:
        """The longest hold since the last call, in milliseconds."""
        longest, self._longest = self._longest, 0.0
        return longest * 1000


def _queued(statistics: io.FileIO) -> float:
    """How long the thread has waited for a processor so far, in seconds."""
    statistics.seek(0)
    return int(statistics.read(128).split()[1]) / 1e9


async def own_loop(source: Source, streams: int, tokens: int) -> dict[str, float]:
    """The source read by nothing but a loop: tokens a second, and milliseconds to the first token."""
    request = GenerationRequest(prompt_ids=(1, 2, 3), max_new_tokens=tokens)

    async def read() -> tuple[float, float, float]:
        asked = time.perf_counter()
        first = 0.0
        async for event in source.submit(request).events():
            if not first and isinstance(event, TokensEvent):
                first = time.perf_counter()
        return asked, first, time.perf_counter()

    times = await asyncio.gather(*(read() for _ in range(streams)))
    seconds = max(end for _, _, end in times) - min(first for _, first, _ in times)
    firsts = sorted(first - asked for asked, first, _ in times)
    return {"tokens_per_s": streams * (tokens - 1) / seconds, "first_ms": firsts[len(firsts) // 2] * 1000}


class BareSockets:
    """The source's tokens on plain connections: a line with a number asks for so many, each of them is written at once
    as the bytes of a streamed chunk, and nothing else is done. What is left of the cost is the system's and the loop's.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        request = GenerationRequest(prompt_ids=(1, 2, 3), max_new_tokens=int(await reader.readline()))
        async for event in self._source.submit(request).events():
            writer.write(CHUNK if isinstance(event, TokensEvent) else LAST_CHUNK)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


async def answer(source: Source, watch: LockWatch, command: dict[str, Any]) -> dict[str, Any]:
    """Do what a line asks: set the `rate`, run the `own_loop`, or say what the loop's thread has computed so far and
    how the lock was held since the last `figures`.
    """
    if "rate" in command:
        source.rate = command["rate"]
    if command["do"] == "own_loop":
        return await own_loop(source, command["streams"], command["tokens"])
    return {"cpu_s": time.thread_time(), "longest_ms": watch.since_last()}


async def main() -> None:
    """Serve until the input ends."""
    loop = asyncio.get_running_loop()
    sys.setswitchinterval(SWITCH_S)
    source, watch = Source(), LockWatch()
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory), VOCABULARY)
        app = create_app(source, ApiOptions(model_dir=Path(directory), model_name="source", vision=True))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ready, stop = asyncio.Event(), asyncio.Event()
    # As the engine's own process does before it serves.
    gc.collect()
    gc.freeze()
    serving = asyncio.create_task(serve_http(app, "127.0.0.1", port, on_ready=ready.set, stop=stop))
    await ready.wait()
    bare = await asyncio.start_server(BareSockets(source).serve, "127.0.0.1", 0)
    print(json.dumps({"port": port, "bare_port": bare.sockets[0].getsockname()[1]}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await answer(source, watch, json.loads(line))), flush=True)
    bare.close()
    stop.set()
    await serving


if __name__ == "__main__":
    asyncio.run(main())
