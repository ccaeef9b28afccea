# SPDX-License-Identifier: Apache-2.0
"""Sending an image from this host's Docker straight into another host's, with progress in a file.

Where both have the classic image store it goes layer by layer (_image_layers); another store takes and gives only whole
archives. Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _image_layers
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import DockerError
from ansible_collections.sparkpair.serving.plugins.module_utils._image_layers import CHUNK, SavedError

_TELL_S = 5.0
_CONTAINERD = "io.containerd.snapshotter"


def over_link(command: Sequence[str], address: str) -> list[str]:
    """Return an ssh command whose last word is the host, leading to it by another `address` where there is one.

    The host stays who it is: its key is looked for, and its options are taken, by the name that the command has for it.
    """
    if not command or not address:
        return list(command)
    name = command[-1].rpartition("@")[2]
    return [*command[:-1], "-o", f"HostName={address}", "-o", f"HostKeyAlias={name}", command[-1]]


class Remote:
    """The other host's Docker, asked by a command such as ssh with docker behind it.

    What is asked has no spaces: ssh gives its words to a shell, which would part them there.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)

    def ask(self, *arguments: str, forgiven: str = "") -> str:
        """Return what the client said, nothing if it failed with the words `forgiven`. Raises DockerError."""
        if shutil.which(self.command[0]) is None:
            raise DockerError(
                f"there is no program {self.command[0]} on this host, with which the image is sent: install it"
            )
        done = subprocess.run(
            [*self.command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return done.stdout
        if forgiven and forgiven in done.stderr.lower():
            return ""
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DockerError(f"`{' '.join([*self.command, *arguments])}` failed: {said}")

    def identity(self, name: str) -> str:
        """Return the identity of an image, empty without one. Raises DockerError."""
        found = self.ask("image", "inspect", name, forgiven="no such image")
        return _image.identity(json.loads(found)[0]) if found else ""

    def layers(self) -> list[list[str]]:
        """Return the layers of every image. Raises DockerError."""
        images = list(dict.fromkeys(self.ask("image", "ls", "--quiet", "--no-trunc").split()))
        if not images:
            return []
        # One may go meanwhile.
        found = self.ask("image", "inspect", "--format", "{{.RootFS.Layers}}", *images, forgiven="no such image")
        return [line.strip("[]").split() for line in found.splitlines()]

    def containerd(self) -> bool:
        """Say whether it keeps images in containerd's store. Raises DockerError."""
        return _CONTAINERD in self.ask("info", "--format", "{{.DriverStatus}}")

    def clear(self, label: str) -> None:
        """Remove the images that have a label. Raises DockerError."""
        if images := self.ask("image", "ls", "--quiet", "--no-trunc", "--filter", f"label={label}").split():
            self.ask("image", "rm", "--force", *dict.fromkeys(images), forgiven="no such image")


class _Progress:
    """How much was sent, told in a file every few seconds."""

    def __init__(self, file: IO[str], name: str, total: int) -> None:
        self._file, self._name, self._total = file, name, total
        self._begun = self._told = time.monotonic()
        self.sent = 0

    def add(self, count: int) -> None:
        self.sent += count
        if time.monotonic() - self._told >= _TELL_S:
            self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
        seconds = self._told - self._begun
        done, total = self.sent / (1 << 20), self._total / (1 << 20)
        rate = done / max(seconds, 1e-3)
        self._file.write(f"{self._name}: {done:.0f} MiB of about {total:.0f} in {seconds:.0f} s, {rate:.0f} MiB/s\n")
        self._file.flush()

    def result(self) -> dict[str, Any]:
        self.tell()
        seconds = self._told - self._begun
        rate = round(self.sent / (1 << 20) / max(seconds, 1e-3), 1)
        return {"bytes": self.sent, "seconds": round(seconds, 1), "mib_per_s": rate}


def send(source: Sequence[str], remote: Remote, name: str, own: Mapping[str, Any], progress: str) -> dict[str, Any]:
    """Send an image out of the Docker that the command `source` talks to; `own` is what that one knows of it.

    Returns `bytes`, `seconds` and `mib_per_s`. The file `progress` gets a line every few seconds. Raises DockerError
    and OSError.
    """
    layers = [str(layer) for layer in own["RootFS"].get("Layers") or []]
    by_layer = _distinct(layers) and not any(one.containerd() for one in (Remote(source), remote))
    there = _image_layers.common(layers, remote.layers()) if by_layer else 0
    place, total = os.path.dirname(progress), int(own.get("Size") or 0)
    with contextlib.ExitStack() as held:
        file = held.enter_context(open(progress, "w", encoding="utf-8"))
        kept = held.enter_context(tempfile.TemporaryFile(dir=place))
        command = [*source, "save", name]
        pipe = subprocess.PIPE
        saver = held.enter_context(
            subprocess.Popen(command, bufsize=0, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        )
        assert saver.stdout is not None
        assert saver.stderr is not None
        told = _Progress(file, name, total)
        try:
            if by_layer:
                platform = {"architecture": str(own["Architecture"]), "os": str(own["Os"])}
                given = (remote.command, name, layers, platform, there, total, told.add, kept)
                _image_layers.Sender(*given).send(saver.stdout)
            else:
                _whole(saver.stdout, remote.command, told)
            if saver.wait():
                raise SavedError("it ended too early")
        except SavedError as error:
            # Who cut it short knows why.
            saved = saver.stderr.read().decode(errors="replace").strip()
            raise DockerError(f"the image {name} could not be read: {saved or error}") from error
        finally:
            saver.kill()
        return told.result()


def _distinct(layers: Sequence[str]) -> bool:
    """Say whether an image has no layer twice but the empty one: of a large one only one archive has the bytes."""
    some = [layer for layer in layers if layer != _image_layers.EMPTY]
    return len(set(some)) == len(some)


def _whole(saved: IO[bytes], target: Sequence[str], told: _Progress) -> None:
    loading = _image_layers.Loading(target)
    try:
        while count := loading.take(saved.fileno(), CHUNK):
            told.add(count)
        loading.close()
        loading.finished(wait=True)
    finally:
        loading.drop()
