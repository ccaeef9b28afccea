# SPDX-License-Identifier: Apache-2.0
"""Collecting what a host can tell about its ranks into one archive, with secrets removed.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _container_host
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError
from ansible_collections.sparkpair.serving.plugins.module_utils._redact import redact

_LIMIT_S = 30
# What helps of a log is at its beginning and its end; a rank that ran for weeks has said much in between.
_MOST_BYTES = 64 << 20
# What a person who helps would ask for next, each read-only; a program that is not there is said to be missing.
COMMANDS = (
    ("uname", "-a"),
    ("nvidia-smi",),
    ("ip", "-brief", "address"),
    ("ip", "route"),
    ("ibv_devinfo",),
    ("ss", "-ltn"),
    ("free", "-m"),
    ("df", "-h"),
    ("journalctl", "--dmesg", "--lines", "300", "--no-pager"),
)
FILES = ("made.json", "ports.json")


def write_archive(path: str, files: Iterable[tuple[str, str]], secrets: Collection[str]) -> list[str]:
    """Write the names and texts of `files` into a tar.gz without `secrets` and return the names. Raises OSError."""
    # Nobody else may read it, from its first byte.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    names = []
    with tarfile.open(path, mode="w:gz") as archive:
        for name, text in files:
            data = redact(text, secrets).encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))
            names.append(name)
    return names


def logs(state_dir: str, docker: Docker | None) -> Iterator[tuple[str, str]]:
    """Yield the name and text of every log: of ranks that are there, and saved ones, the oldest first."""
    parent = os.path.join(state_dir, "ranks")
    for name in _names(parent):
        path = os.path.join(parent, name, "rank.log")
        if os.path.isfile(path):
            yield f"logs/{name}.log", _text(path)
    if docker:
        yield from _container_logs(state_dir, docker)
    saved = os.path.join(state_dir, "logs")
    for name in _names(saved):
        if name.endswith(".log.gz"):
            yield f"logs/saved/{name[: -len('.gz')]}", _text(os.path.join(saved, name))


def _container_logs(state_dir: str, docker: Docker) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(DockerError):
        for rank in _container_host.ranks_of(docker, state_dir):
            with tempfile.TemporaryDirectory() as place:
                path = os.path.join(place, "log")
                docker.save_log(rank["container"], path)
                yield f"logs/rank{rank['rank']}.log", _text(path)


def surroundings(state_dir: str, docker: Docker | None) -> Iterator[tuple[str, str]]:
    """Yield the name and text of everything else that tells how the host and its ranks are."""
    for command in COMMANDS:
        yield f"host/{'_'.join(command).replace('/', '-')}.txt", _said(list(command))
    for name in FILES:
        path = os.path.join(state_dir, name)
        if os.path.isfile(path):
            yield f"state/{name}", _text(path)
    for folder in ("starts", *(os.path.join("ranks", name) for name in _names(os.path.join(state_dir, "ranks")))):
        for name in _names(os.path.join(state_dir, folder)):
            if name.endswith(".json"):
                yield f"state/{folder}/{name}", _text(os.path.join(state_dir, folder, name))
    if docker:
        yield "docker/info.txt", _said(docker.command("info"))
        yield "docker/containers.txt", _said(docker.command("ps", "--all"))
        yield "docker/images.txt", _said(docker.command("images"))
        with contextlib.suppress(DockerError):
            for rank in _container_host.ranks_of(docker, state_dir):
                found = docker.inspect(rank["container"])
                yield f"docker/rank{rank['rank']}.json", json.dumps(found, indent=1)


def _names(place: str) -> list[str]:
    return sorted(os.listdir(place)) if os.path.isdir(place) else []


def _text(path: str) -> str:
    opener: Any = gzip.open if path.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            return bytes(file.read(_MOST_BYTES)).decode(errors="replace")
    except (OSError, EOFError) as error:
        return f"{path} cannot be read: {error}\n"


def _said(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return f"there is no program {command[0]} on this host\n"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command)}: {error}\n"
    return done.stdout.decode(errors="replace")
