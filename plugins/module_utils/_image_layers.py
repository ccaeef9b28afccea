# SPDX-License-Identifier: Apache-2.0
"""Sending an image layer by layer: only the layers that the other Docker lacks, and the large ones side by side.

`docker load` first unpacks the whole archive it is given and then commits its layers one after the other. Here each
large layer goes into an archive and a `docker load` of its own, while `docker save` still gives the others, and one is
committed while the next ones arrive. A layer can be committed only on those below it: every archive makes an image of
the first so many layers, and the last one the image itself. Those images are labelled, keep what has arrived when a run
is cut, and are removed when the image is complete. Docker checks every layer against its digest.

Only the classic image store takes an archive without the layers that it has. Private to the collection, may change at
any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import DockerError

# The label of images that hold the first layers of one that is on its way.
ARRIVING = "sparkpair.arriving"
# An archive of nothing: the only layer that images often have more than once.
EMPTY = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
CHUNK = 1 << 20
# So many archives at most are on their way at a time, each over a connection of its own.
_MOST_ARCHIVES = 16
_LARGE = "layer.tar"


class SavedError(DockerError):
    """What `docker save` gave is no image."""


class Loading:
    """A `docker load` in another Docker, which is being given an archive."""

    def __init__(self, target: Sequence[str]) -> None:
        command = [*target, "load", "--quiet"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe)

    def write(self, data: bytes) -> None:
        """Give it the next part of the archive. Raises DockerError."""
        left = memoryview(data)
        with self._explained() as descriptor:
            while left:
                left = left[os.write(descriptor, left) :]

    def take(self, source: int, count: int) -> int:
        """Give it at most so many bytes straight from a pipe, and return how many there were. Raises DockerError."""
        with self._explained() as descriptor:
            if hasattr(os, "splice"):
                return int(os.splice(source, descriptor, count))
            data = os.read(source, count)
        self.write(data)
        return len(data)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[int]:
        assert self._process.stdin is not None
        try:
            yield self._process.stdin.fileno()
        except BrokenPipeError:
            # It has ended, and says why.
            self.close()
            self.finished(wait=True)
            raise DockerError("the other Docker did not read the image to its end") from None

    def close(self) -> None:
        """End the archive, upon which Docker commits what is in it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None

    def finished(self, wait: bool) -> bool:
        """Say whether all is committed, after having waited for that if asked to. Raises DockerError."""
        if not wait and self._process.poll() is None:
            return False
        _, said = self._process.communicate()
        if self._process.returncode != 0:
            raise DockerError(f"the other Docker did not take the image: {said.decode(errors='replace').strip()}")
        return True

    def drop(self) -> None:
        """Take back what was not committed: Docker throws it away."""
        assert self._process.stderr is not None
        if not self._process.stderr.closed:
            self._process.kill()
            self._process.communicate()


def common(own: Sequence[str], others: Sequence[Sequence[str]]) -> int:
    """Return how many of an image's layers, from the lowest on, one of the other images has below it, too."""
    most = 0
    for layers in others:
        same = 0
        while same < min(len(own), len(layers)) and own[same] == layers[same]:
            same += 1
        most = max(most, same)
    return most


class Sender:
    """The sending of one image of which the other Docker has the first `there` layers.

    `layers` are the digests of all layers, the lowest first; `platform` has `architecture` and `os`; `total` is the
    image's size in bytes; `sent` is told how many bytes went out; in the file `kept` small layers wait for their turn.
    """

    def __init__(
        self,
        target: Sequence[str],
        name: str,
        layers: Sequence[str],
        platform: Mapping[str, str],
        there: int,
        total: int,
        sent: Callable[[int], None],
        kept: IO[bytes],
    ) -> None:
        self._target, self._name, self._layers, self._platform = list(target), name, list(layers), dict(platform)
        self._sent, self._kept = sent, kept
        self._large = max(1, total // _MOST_ARCHIVES)
        self._there = there
        # What is being committed, and how many layers are there after that.
        self._committing: tuple[Loading, int] | None = None
        # Large layers that have arrived whole, by digest; and the one that is on its way.
        self._arrived: dict[str, Loading] = {}
        self._begun: Loading | None = None
        # Small layers by digest: from where on in the file they are, and how long.
        self._small: dict[str, tuple[int, int]] = {}
        self._texts: dict[str, bytes] = {}
        # Before version 25 a layer's name is a directory, which tells the one of the layer below it. Here are the one
        # above each, those of the layers in their order as far as that is known, and those that share another's file.
        self._above: dict[str, str] = {}
        self._order: list[str] = []
        self._shared: dict[str, str] = {}

    def send(self, saved: IO[bytes]) -> None:
        """Read what `docker save` gives, a pipe without buffer, and send what is missing. Raises DockerError."""
        source = saved.fileno()
        try:
            for entry in _files(source):
                self._take(entry, source)
                self._advance()
            self._advance(wait=True)
            self._complete()
        finally:
            for left in (*self._arrived.values(), self._begun, self._committing and self._committing[0]):
                if left:
                    left.drop()

    def _take(self, entry: tarfile.TarInfo, source: int) -> None:
        """Take a file of what was saved."""
        directory, _, last = entry.name.rpartition("/")
        digest, size = f"sha256:{last}", entry.size
        if entry.issym():
            self._shared[directory] = entry.linkname.split("/")[-2]
            return
        if digest in self._layers:
            layer, there = digest, digest not in self._layers[self._there :]
        elif last == "layer.tar":
            layer, there = directory, size >= self._large and directory in self._order[: self._there]
        else:
            self._texts[entry.name] = text = _exactly(source, size)
            if last == "json":
                self._above[json.loads(text).get("parent", "")] = directory
                while above := self._above.get(self._order[-1] if self._order else ""):
                    self._order.append(above)
            return
        if size < self._large or there:
            if not there:
                self._small[layer] = (self._kept.seek(0, os.SEEK_END), size)
                self._sent(size)
            while size:
                data = _exactly(source, min(size, CHUNK))
                size -= len(data)
                if not there:
                    self._kept.write(data)
            return
        self._begun = Loading(self._target)
        self._begun.write(_header(_LARGE, size))
        while size:
            count = self._begun.take(source, min(size, CHUNK))
            if not count:
                raise SavedError("it ends within a layer")
            size -= count
            self._sent(count)
            self._advance()
        self._begun.write(_padding(entry.size))
        self._arrived[layer], self._begun = self._begun, None

    def _at(self, position: int) -> str:
        """Return the name under which a layer has come, or will."""
        layer = self._order[position] if position < len(self._order) else self._layers[position]
        return self._shared.get(layer, layer)

    def _advance(self, wait: bool = False) -> None:
        """Have the next large layer committed if it is here, all below it too, and none is being committed."""
        while True:
            if self._committing:
                loading, there = self._committing
                if not loading.finished(wait):
                    return
                self._there, self._committing = there, None
            at = self._there
            while at < len(self._layers) and self._at(at) in self._small:
                at += 1
            if at == len(self._layers) or self._at(at) not in self._arrived:
                return
            rootfs = {"type": "layers", "diff_ids": self._layers[: at + 1]}
            config = {**self._platform, "config": {"Labels": {ARRIVING: self._name}}, "rootfs": rootfs}
            large = self._at(at)
            self._committing = (self._arrived.pop(large), at + 1)
            self._describe(json.dumps(config).encode(), [], large)

    def _complete(self) -> None:
        """Send the image's own configuration and name, and the small layers that no large one took along."""
        try:
            config = self._texts[json.loads(self._texts["manifest.json"])[0]["Config"]]
        except (KeyError, IndexError, ValueError) as error:
            raise SavedError("it has no configuration") from error
        for position in range(self._there, len(self._layers)):
            if self._at(position) not in self._small:
                raise SavedError(f"it has no layer {self._layers[position]}")
        self._committing = (Loading(self._target), len(self._layers))
        self._describe(config, [self._name])
        self._committing[0].finished(wait=True)
        self._committing = None

    def _describe(self, config: bytes, tags: Sequence[str], large: str = "") -> None:
        """Give what is being committed its small layers, its configuration and its list of layers, and end it."""
        assert self._committing is not None
        loading, count = self._committing
        layers = [self._at(position) for position in range(count)]
        for layer in dict.fromkeys(layers[self._there :]):
            if layer != large:
                begin, size = self._small[layer]
                self._kept.seek(begin)
                loading.write(_header(_path(layer), size))
                for begin in range(0, size, CHUNK):
                    loading.write(self._kept.read(min(size - begin, CHUNK)))
                loading.write(_padding(size))
        paths = [_LARGE if layer == large else _path(layer) for layer in layers]
        listed = json.dumps([{"Config": "config.json", "RepoTags": tags, "Layers": paths}]).encode()
        for name, data in (("config.json", config), ("manifest.json", listed)):
            loading.write(_header(name, len(data)) + data + _padding(len(data)))
        loading.write(bytes(2 * tarfile.BLOCKSIZE))
        loading.close()


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)


def _path(layer: str) -> str:
    return f"{layer.rpartition(':')[2]}.tar"


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _files(source: int) -> Iterator[tarfile.TarInfo]:
    """Read the headers of an archive's files; who asks for the next one has read the content of the one before.

    Raises SavedError.
    """
    size = None
    while True:
        block = _exactly(source, tarfile.BLOCKSIZE)
        if not any(block):
            # Two such blocks end it, and what comes after them is for tapes.
            while os.read(source, CHUNK):
                pass
            return
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise SavedError(f"it is no archive ({error})") from error
        if entry.type in (tarfile.XHDTYPE, tarfile.XGLTYPE):
            # More than eight GiB are told here, and nothing else of it matters.
            text = _exactly(source, entry.size)
            found = re.search(rb"(?:^|\n)\d+ size=(\d+)\n", text)
            size = int(found[1]) if found else size
        else:
            if size is not None:
                entry.size, size = size, None
            if entry.isreg() or entry.issym():
                yield entry
        _exactly(source, -entry.size % tarfile.BLOCKSIZE)


def _exactly(source: int, count: int) -> bytes:
    """Read so many bytes. Raises SavedError."""
    pieces = []
    while count:
        piece = os.read(source, count)
        if not piece:
            raise SavedError("it ends too early")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
