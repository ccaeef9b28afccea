# SPDX-License-Identifier: Apache-2.0
"""Real ranks as processes, and what can be done to them: start, wait for a line, crash, ask to stop."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

from tests.engine.devices import rank_device
from tests.lines import Lines

PATIENCE = 90.0
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class Rank:
    """One `sparkpair serve` process with its output collected line by line."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sparkpair", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        self._said = Lines(self.process)

    @property
    def lines(self) -> list[str]:
        """What the rank has printed so far."""
        return self._said.all

    @property
    def log(self) -> str:
        """Everything the rank has printed."""
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> str:
        """The first line that contains `text`; fails when the rank ends without it."""
        return self._said.expect(text, PATIENCE)

    def line_within(self, text: str, seconds: float) -> str | None:
        """The first line that contains `text`; None when it has not come in that time, or the rank has ended."""
        return self._said.within(text, seconds)

    def exit_code(self) -> int:
        """Wait for the rank to end."""
        code = self.process.wait(PATIENCE)
        self._said.end(PATIENCE)
        return code

    def close(self) -> None:
        """Kill what still runs."""
        self.process.kill()
        self.process.wait()
        self._said.end()
        assert self.process.stdout is not None
        self.process.stdout.close()


class World:
    """All ranks of one server."""

    def __init__(self, model: pathlib.Path, world: int, *extra: str) -> None:
        self.port = free_port()
        self.master_port = free_port()
        self.model = model
        self.world = world
        self.extra = extra
        self.ranks: dict[int, Rank] = {}

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self, rank: int, *extra: str, model: pathlib.Path | None = None) -> Rank:
        """Start one rank; later arguments win over earlier ones."""
        arguments = [str(model or self.model), "--tp", str(self.world), "--rank", str(rank)]
        arguments += ["--master", LOOPBACK, "--master-port", str(self.master_port), "--port", str(self.port)]
        arguments += ["--name", "miniature", "--context", "8192", "--threads", "1", "--memory-reserve-gib", "0.1"]
        arguments += ["--device", rank_device(rank, self.world)]
        self.ranks[rank] = Rank([*arguments, *self.extra, *extra])
        return self.ranks[rank]

    def start_all(self) -> None:
        """Start every rank and wait until rank 0 serves."""
        for rank in reversed(range(self.world)):
            self.start(rank)
        self.ranks[0].wait_for("serving ")

    def crash(self, rank: int) -> None:
        """Kill a rank without warning."""
        os.kill(self.ranks[rank].process.pid, signal.SIGKILL)

    def stop(self, rank: int) -> None:
        """Ask a rank to end."""
        self.ranks[rank].process.terminate()


@contextlib.contextmanager
def running(model: pathlib.Path, world: int, *extra: str) -> Iterator[World]:
    """A world that is torn down in the end whatever happened."""
    made = World(model, world, *extra)
    try:
        yield made
    finally:
        for rank in made.ranks.values():
            rank.close()
