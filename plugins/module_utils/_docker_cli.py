# SPDX-License-Identifier: Apache-2.0
"""Asking a Docker daemon by its own client: inspection, logs, and the end of a container as an event.

What changes containers is community.docker; this only looks. Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._rank_log import lines_of
from ansible_collections.sparkpair.serving.plugins.module_utils._ready import ReadyWatch

_LIMIT_S = 30
_HEAD_BYTES = 256 * 1024
_TAIL_LINES = "2000"
# New lines come in bursts; reading all of them for each line would only repeat the work.
_BURST_S = 0.2


class DockerError(Exception):
    """Docker cannot be asked, or refuses. The text is for a person."""


class Docker:
    """The daemon at an address such as unix:///var/run/docker.sock."""

    def __init__(self, host: str) -> None:
        self.host = host

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of the client. Raises DockerError without the program."""
        if shutil.which("docker") is None:
            raise DockerError("there is no program docker on this host: install Docker")
        return ["docker", "-H", self.host, *arguments]

    def inspect(self, name: str, kind: str = "container") -> dict[str, Any] | None:
        """Return what Docker knows of a container or an `image`, None when there is none. Raises DockerError."""
        done = self.attempt("inspect", "--type", kind, name)
        if done.returncode == 0:
            return dict(json.loads(done.stdout)[0])
        said = done.stderr.strip()
        if f"no such {kind}" in said.lower():
            return None
        raise DockerError(f"Docker at {self.host} cannot be asked about the {kind} {name}: {said}")

    def run(self, *arguments: str, missing_ok: bool = False) -> str:
        """Run the client and return what it said. Raises DockerError; `missing_ok` forgives what is not there."""
        done = self.attempt(*arguments)
        if done.returncode != 0 and not (missing_ok and "no such" in done.stderr.lower()):
            raise DockerError(f"`docker {' '.join(arguments)}` failed at {self.host}: {done.stderr.strip()}")
        return done.stdout

    def names(self, labels: Mapping[str, str]) -> list[str]:
        """Return the names of the containers, running or not, that have all of `labels`. Raises DockerError."""
        filters = [word for name, value in labels.items() for word in ("--filter", f"label={name}={value}")]
        done = self.attempt("ps", "--all", *filters, "--format", "{{.Names}}")
        if done.returncode != 0:
            raise DockerError(f"Docker at {self.host} cannot be asked for its containers: {done.stderr.strip()}")
        return done.stdout.split()

    def log_lines(self, name: str) -> list[str]:
        """Return the first and the last lines of a container's output, in order. Raises DockerError."""
        with self._output("logs", name) as output:
            head = output.read(_HEAD_BYTES)
            if len(head) < _HEAD_BYTES:
                return lines_of(head)
        with self._output("logs", "--tail", _TAIL_LINES, name) as output:
            return lines_of(head.rpartition(b"\n")[0]) + lines_of(output.read())

    def save_log(self, name: str, path: str) -> None:
        """Write everything that a container has said, each line with its time, into the file `path`."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            done = subprocess.run(
                self.command("logs", "--timestamps", name),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode != 0:
            raise DockerError(f"the log of container {name} cannot be read")

    def wait_for(
        self,
        name: str,
        events: Collection[str],
        ready_url: str | None,
        changed: Callable[[], bool],
        timeout_s: float,
        key: str | None = None,
    ) -> None:
        """Return when one of `events` has happened to a running container, or after `timeout_s` seconds.

        The events are `exit`, `ready` (needs `ready_url`, asked with `key`), `log` (a new line) and `anchor` (a new
        line after which `changed` is true).
        """
        deadline = time.monotonic() + timeout_s
        with contextlib.ExitStack() as held:
            poller = select.poll()
            log = None
            if "exit" in events:
                poller.register(held.enter_context(self._output("wait", name)), select.POLLIN)
            if "ready" in events and ready_url:
                poller.register(held.enter_context(ReadyWatch(ready_url, key)).descriptor, select.POLLIN)
            if {"log", "anchor"} & set(events):
                log = held.enter_context(self._output("logs", "--follow", "--tail", "0", name))
                poller.register(log, select.POLLIN)
            # Something may have been said between the last look and the moment the log is followed.
            if "anchor" in events and changed():
                return
            while (left := deadline - time.monotonic()) > 0:
                happened = [descriptor for descriptor, _ in poller.poll(1000 * left)]
                if log is None or [*happened] != [log.fileno()]:
                    return
                if not os.read(log.fileno(), 65536):
                    # The log's end is the container's.
                    return
                if "log" in events or changed():
                    return
                time.sleep(min(_BURST_S, max(0.0, deadline - time.monotonic())))

    @contextlib.contextmanager
    def _output(self, *arguments: str) -> Any:
        """Give the output of a client, both its streams, and end it afterwards."""
        client = subprocess.Popen(
            self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert client.stdout is not None
        try:
            yield client.stdout
        finally:
            client.kill()
            client.stdout.close()
            client.wait()

    def attempt(
        self, *arguments: str, limit_s: float = _LIMIT_S, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the client, with these variables beside its own, and return how it ended, well or not. Raises DockerError
        when it takes too long.
        """
        try:
            return subprocess.run(
                self.command(*arguments),
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DockerError(f"Docker at {self.host} did not answer within {limit_s} s") from error
