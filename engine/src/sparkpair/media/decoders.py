# SPDX-License-Identifier: Apache-2.0
"""Decoding in processes of their own: each file within a time limit that really ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy

from sparkpair.media.errors import MediaError
from sparkpair.media.limits import MediaLimits
from sparkpair.media.prepared import Kind, Prepared

# Text is turned into bytes in such pieces, so that no other thread waits long for the interpreter.
PIECE = 256 * 1024
LONGEST_LINE = 1 << 20

# For how long a process may start, which is no fault of the file that it is started for.
START_S = 60.0


class NoDecoder(Exception):
    """No process could be started."""


class _Late(Exception):
    """The process did not do its part in time."""


class _Gone(Exception):
    """The process ended by itself."""


class DecoderProcess:
    """One process, ready for one file after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparkpair.media.decoder_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions = self._process.stdin.fileno()
        self._answers = self._process.stdout.fileno()
        for descriptor in (self._questions, self._answers):
            os.set_blocking(descriptor, False)
        self.pid = self._process.pid

    def start(self) -> None:
        """Wait until it is ready. Raises NoDecoder when it does not become so."""
        try:
            self._line(time.monotonic() + START_S)
        except (_Late, _Gone):
            self.end()
            raise NoDecoder from None

    def ask(self, question: dict[str, Any], source: str | bytes, deadline: float) -> tuple[dict[str, Any], Any]:
        """The answer's fields and patches, None with an error. Raises _Late or _Gone; the process is then of no use."""
        self._write(json.dumps(question).encode() + b"\n", deadline)
        for start in range(0, len(source), PIECE):
            piece = source[start : start + PIECE]
            self._write(piece.encode("ascii") if isinstance(piece, str) else piece, deadline)
        fields = self._line(deadline)
        if "error" in fields:
            return fields, None
        patches = numpy.empty(fields["shape"], dtype=numpy.uint8)
        room = patches.data.cast("B")
        while room:
            self._wait(self._answers, select.POLLIN, deadline)
            if (count := os.readv(self._answers, [room])) == 0:
                raise _Gone
            room = room[count:]
        return fields, patches

    def _line(self, deadline: float) -> dict[str, Any]:
        line = b""
        # Byte by byte up to the line's end, as the patches come right behind it; a line is short.
        while not line.endswith(b"\n"):
            self._wait(self._answers, select.POLLIN, deadline)
            if not (byte := os.read(self._answers, 1)) or len(line) > LONGEST_LINE:
                raise _Gone
            line += byte
        found: dict[str, Any] = json.loads(line)
        return found

    def _write(self, data: bytes, deadline: float) -> None:
        room = memoryview(data)
        while room:
            self._wait(self._questions, select.POLLOUT, deadline)
            try:
                room = room[os.write(self._questions, room) :]
            except BrokenPipeError:
                raise _Gone from None

    @staticmethod
    def _wait(descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise _Late

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Decoders:
    """Processes, made when they are needed and kept. Its methods may be called from several threads at once, each of
    which then has a process to itself.
    """

    def __init__(self) -> None:
        self._idle: queue.SimpleQueue[DecoderProcess] = queue.SimpleQueue()
        self._closed = False

    def prepare(self, kind: Kind, source: str | bytes, limits: MediaLimits, *, base64: bool = False) -> Prepared:
        """Decode a data URL, a text in base64, or a file's bytes. Raises MediaError saying what is wrong with it, or
        NoDecoder.
        """
        seconds = limits.picture_decode_s if kind == "picture" else limits.clip_decode_s
        if isinstance(source, str) and not source.isascii():
            raise MediaError("the data has characters that are not ASCII")
        question = {
            "kind": kind,
            "form": "file" if isinstance(source, bytes) else "base64" if base64 else "url",
            "size": len(source),
            "limits": dataclasses.asdict(limits),
        }
        try:
            with self._ready_process() as process:
                fields, patches = process.ask(question, source, time.monotonic() + seconds)
        except _Late:
            raise MediaError(f"the {kind} takes longer than {seconds:g} s to decode") from None
        except _Gone:
            raise MediaError(f"the {kind} made the decoder fail") from None
        if "error" in fields:
            raise MediaError(fields["error"])
        grid = (int(fields["grid"][0]), int(fields["grid"][1]), int(fields["grid"][2]))
        return Prepared(patches, grid, tuple(fields["seconds"]), bytes.fromhex(fields["digest"]))

    @contextlib.contextmanager
    def _ready_process(self) -> Iterator[DecoderProcess]:
        process = self._take()
        try:
            yield process
        except BaseException:
            process.end()
            raise
        if self._closed:
            process.end()
        else:
            self._idle.put(process)

    def _take(self) -> DecoderProcess:
        """An idle process that has not ended meanwhile, or a new one."""
        with contextlib.suppress(queue.Empty):
            while True:
                process = self._idle.get_nowait()
                if process.alive:
                    return process
                process.end()
        process = DecoderProcess()
        process.start()
        return process

    def close(self) -> None:
        """End the processes; one that is at work ends when it is done, or late."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()
