# SPDX-License-Identifier: Apache-2.0
"""An image on its way from one daemon to another: only what is missing is sent, and a run that was cut goes on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _image_layers, _image_stream
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError
from ansible_collections.sparkpair.serving.plugins.modules import made_here

from tests.integration.docker.daemons import DOCKER, Daemon

NAME = "sparkpair-test-layers:1"
# What both daemons have already: of a few MiB, because nothing in it runs.
BASE = "sparkpair-test-layers-base:1"
BASE_MIB = 4
MIB = 1 << 20


def build(daemon: Daemon, place: Path, *files: tuple[str, float], base: str = BASE) -> dict[str, Any]:
    """Make an image with a layer of random bytes for each file, so many MiB of it."""
    lines = [f"FROM {base}"]
    for name, size in files:
        if not (place / name).exists():
            (place / name).write_bytes(os.urandom(round(size * MIB)))
        lines.append(f"COPY {name} /{name}")
    (place / "Dockerfile").write_text("\n".join(lines) + "\n")
    daemon.run("build", "--network", "none", "--tag", NAME, str(place))
    return daemon.inspect(NAME)


class Pair:
    """A head that sends and a worker that it sends to."""

    def __init__(self, head: Daemon, worker: Daemon, place: Path) -> None:
        self.head, self.worker, self.place = head, worker, place
        self.remote = _image_stream.Remote([str(DOCKER), "-H", worker.socket])

    def send(self, own: dict[str, Any], *source: str) -> float:
        """Send the image and return how many MiB of it went out, to the half."""
        command = source or (str(DOCKER), "-H", self.head.socket)
        sent = _image_stream.send(command, self.remote, NAME, own, str(self.place / "progress"))
        return round(2 * sent["bytes"] / MIB) / 2

    def arriving(self) -> int:
        """How many images at the worker hold the first layers of one that is on its way."""
        return len(self.remote.ask("image", "ls", "--quiet", "--filter", f"label={_image_layers.ARRIVING}").split())

    def arrived(self) -> bool:
        """Whether the worker has the head's image, whole."""
        return self.remote.identity(NAME) == _image.identity(self.head.inspect(NAME))

    def saved(self, name: str, without: str = "") -> list[str]:
        """Save the image as Docker does since version 25, each layer under its digest, and return a command that gives
        it as `docker save` would, which fails in the end when a layer was left out.
        """
        own, path = self.head.inspect(NAME), self.place / name
        with (self.place / "as-saved.tar").open("wb") as file:
            subprocess.run([str(DOCKER), "-H", self.head.socket, "save", NAME], stdout=file, check=True)
        with tarfile.open(self.place / "as-saved.tar") as old, tarfile.open(path, "w") as new:
            listed = json.load(old.extractfile("manifest.json"))[0]
            layers = dict(zip(own["RootFS"]["Layers"], listed["Layers"], strict=True))
            for digest in sorted(set(layers) - {without}):
                add(new, f"blobs/sha256/{digest[7:]}", old.extractfile(layers[digest]).read())
            if not without:
                config = old.extractfile(listed["Config"]).read()
                add(new, f"blobs/{own['Id'].replace(':', '/')}", config)
                add(new, "manifest.json", json.dumps([{"Config": f"blobs/{own['Id'].replace(':', '/')}"}]).encode())
        last = "sys.exit('the disk broke')" if without else ""
        program = self.place / f"{name}.py"
        program.write_text(
            "import os, shutil, sys\n"
            "if 'save' not in sys.argv:\n"
            f"    os.execv({str(DOCKER)!r}, ['docker', '-H', {self.head.socket!r}, *sys.argv[1:]])\n"
            f"shutil.copyfileobj(open({str(path)!r}, 'rb'), sys.stdout.buffer)\n{last}\n"
        )
        return [sys.executable, str(program)]


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


@pytest.fixture(scope="module")
def based(daemons: list[Daemon], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give both daemons the base."""
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    with tarfile.open(archive, "w") as file:
        add(file, "base", os.urandom(BASE_MIB * MIB))
    for daemon in daemons:
        daemon.run("import", str(archive), BASE)


@pytest.fixture
def pair(based: None, clean: list[Daemon], tmp_path: Path) -> Iterator[Pair]:
    yield Pair(*clean, tmp_path)
    for daemon in clean:
        daemon.run("image", "rm", "--force", NAME, check=False)
        daemon.run("image", "prune", "--force")


def test_only_layers_that_the_other_docker_lacks_are_sent(pair: Pair, tmp_path: Path) -> None:
    own = build(pair.head, tmp_path, ("one", 10), ("two", 0.5))
    # The base is at the worker already.
    assert pair.send(own, *pair.saved("first")) == 10.5
    assert pair.arrived()
    more = build(pair.head, tmp_path, ("three", 3), base=NAME)
    assert pair.send(more, *pair.saved("second")) == 3
    assert pair.arrived()
    # The way that the head's own version saves, where a layer's name does not tell which one it is.
    pair.remote.clear(_image_layers.ARRIVING)
    pair.worker.run("image", "rm", "--force", NAME)
    pair.worker.run("image", "prune", "--force")
    assert pair.send(more) >= 13.5
    assert pair.arrived()


def test_a_run_that_was_cut_keeps_what_has_arrived_and_the_next_one_sends_the_rest(pair: Pair, tmp_path: Path) -> None:
    own = build(pair.head, tmp_path, ("one", 8), ("two", 5), ("three", 10))
    without = own["RootFS"]["Layers"][-1]
    with pytest.raises(DockerError, match="could not be read: the disk broke"):
        pair.send(own, *pair.saved("cut", without=without))
    assert pair.remote.identity(NAME) == ""
    assert pair.arriving() > 0
    assert pair.send(own, *pair.saved("whole")) == 10
    assert pair.arrived()
    # Undoing finds what is left over, and taking it away takes nothing from the image.
    left = made_here.arriving(Docker(pair.worker.socket))
    assert len(left) == pair.arriving() > 0
    pair.remote.clear(_image_layers.ARRIVING)
    assert made_here.arriving(Docker(pair.worker.socket)) == []
    assert pair.arrived()


def test_an_image_with_a_layer_twice_goes_whole(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(os.urandom(MIB))
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nCOPY one /one\nCOPY one /one\n")
    pair.head.run("build", "--network", "none", "--tag", NAME, str(tmp_path))
    own = pair.head.inspect(NAME)
    assert len(set(own["RootFS"]["Layers"])) < len(own["RootFS"]["Layers"])
    # The base is there, and is sent again.
    assert pair.send(own) == BASE_MIB + 1
    assert pair.arrived()


def test_why_the_other_docker_does_not_take_an_image_is_told(pair: Pair, tmp_path: Path) -> None:
    own = build(pair.head, tmp_path, ("one", 3))
    full = tmp_path / "full"
    full.write_text(
        '#!/bin/sh\nif [ "$1" = load ]; then echo "write /data: no space left on device" >&2; exit 1; fi\n'
        f'exec {DOCKER} -H {pair.worker.socket} "$@"\n'
    )
    full.chmod(0o755)
    pair.remote.command = [str(full)]
    with pytest.raises(DockerError, match="did not take the image: write /data: no space left on device"):
        pair.send(own)
