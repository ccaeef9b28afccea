# SPDX-License-Identifier: Apache-2.0
"""Brings the files of a snapshot from the head over the link: several whole files at a time, resumed where one was cut.

A file is hashed while it arrives and gets its name when it is whole and right; its partial file stays for the next run
when anything goes wrong. Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import mmap
import os
import queue
import secrets
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _copy_server, _hub_cache, _manifest, _snapshot
from ansible_collections.sparkpair.serving.plugins.module_utils._job import Job, JobError, Report
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot, amount

_BUFFER = 8 << 20
# What can be written past the page cache is a multiple of this, of which every disk's block is a part.
_BLOCK = 4096
# A file may be asked for again so often without a byte having come in between.
_MOST_FAILURES = 5
_CONNECT_S = 10.0

Files = Sequence[Mapping[str, Any]]


class _Stopped(Exception):
    """Another stream has failed."""


def pull(
    snapshot: Snapshot,
    job: Job,
    source: tuple[str, int],
    secret: str,
    manifest: Files,
    streams: int,
    mode: str,
    report: Report,
) -> dict[str, Any]:
    """Make the snapshot equal to the manifest and return `copied_bytes`. Runs in the job. Raises JobError and
    OSError.
    """
    for one in manifest:
        _refuse_strange(one)
    blobs = os.path.join(_hub_cache.repository(snapshot.cache, snapshot.repo), "blobs")
    os.makedirs(blobs, exist_ok=True)
    os.makedirs(snapshot.path, exist_ok=True)
    received = 0
    for _ in range(2):
        wrong = _known_wrong(job)
        _adopt(snapshot, blobs, manifest)
        wanted = {_target(snapshot, blobs, one): one for one in manifest}
        lacking = {
            target: one for target, one in wanted.items() if one["path"] in wrong or _size(target) != one["size"]
        }
        begun = sum(_size(_partial(blobs, one)) or 0 for one in lacking.values())
        room(snapshot.cache, _manifest.total(lacking.values()) - begun)
        copier = _Copier(snapshot, source, secret, blobs, mode, report, _manifest.total(lacking.values()))
        hashes = copier.run(lacking, streams)
        received += copier.received
        for one in manifest:
            _link(snapshot, blobs, one)
        _take_out(snapshot, manifest)
        by_path = {one["path"]: hashes[target] for target, one in wanted.items() if target in hashes}
        problems = _manifest.compare(_hub_cache.files(snapshot.path), manifest)
        problems += _snapshot.verify(snapshot, job, mode, manifest, report, by_path)
        # A file that was thought right, and has been found out by now, need not wait for another run.
        if not _known_wrong(job) - {one["path"] for one in lacking.values()}:
            break
    if problems:
        raise JobError(f"the copy in {snapshot.path} is not as on the head: {'; '.join(problems[:20])}")
    reference = os.path.join(os.path.dirname(blobs), "refs", "main")
    if not os.path.exists(reference):
        os.makedirs(os.path.dirname(reference), exist_ok=True)
        with open(reference, "w", encoding="utf-8") as file:
            file.write(snapshot.revision)
    return {"copied_bytes": received}


def _known_wrong(job: Job) -> set[str]:
    """Return the files whose content was found to be wrong when it was last looked at."""
    return set(job.kept("verified").get("wrong") or {})


def room(cache: str, missing: int) -> None:
    """Check that the disk has room for what is to come. Raises JobError."""
    free = shutil.disk_usage(cache).free
    margin = min(_snapshot.MARGIN_BYTES, max(0, missing))
    if missing > 0 and free < missing + margin:
        raise JobError(
            f"the disk of {cache} has {amount(free)} free, and {amount(missing)} are to be copied, with a margin of "
            f"{amount(margin)}: free some space there, or set sparkpair_hf_cache of this host to a larger disk"
        )


def _refuse_strange(one: Mapping[str, Any]) -> None:
    """Refuse names that would lead out of the cache, whoever made the manifest."""
    parts = str(one["path"]).split("/")
    if any(part in ("", ".", "..") for part in parts) or "/" in str(one["blob"]) or str(one["blob"]) in (".", ".."):
        raise JobError(f"the head's manifest has a name that leads out of the cache: {one['path']!r}")


def _target(snapshot: Snapshot, blobs: str, one: Mapping[str, Any]) -> str:
    return os.path.join(blobs, one["blob"]) if one["blob"] else os.path.join(snapshot.path, one["path"])


def _partial(blobs: str, one: Mapping[str, Any]) -> str:
    name = one["blob"] or "plain-" + hashlib.sha256(str(one["path"]).encode()).hexdigest()
    return os.path.join(blobs, f"{name}{_hub_cache.PARTIAL}")


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _adopt(snapshot: Snapshot, blobs: str, manifest: Files) -> None:
    """Give plain files of the snapshot that are links on the head a blob's name, so that they need no copy."""
    for one in manifest:
        path, blob = os.path.join(snapshot.path, one["path"]), os.path.join(blobs, one["blob"])
        if one["blob"] and not os.path.islink(path) and _size(path) == one["size"] and not os.path.lexists(blob):
            os.link(path, blob)


def _link(snapshot: Snapshot, blobs: str, one: Mapping[str, Any]) -> None:
    if not one["blob"]:
        return
    path = os.path.join(snapshot.path, one["path"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    leads = os.path.relpath(os.path.join(blobs, one["blob"]), os.path.dirname(path))
    with contextlib.suppress(OSError):
        if os.readlink(path) == leads:
            return
    unfinished = os.path.join(blobs, f"link-{secrets.token_hex(8)}{_hub_cache.PARTIAL}")
    os.symlink(leads, unfinished)
    os.replace(unfinished, path)


def _take_out(snapshot: Snapshot, manifest: Files) -> None:
    """Remove links that the head's snapshot does not have; what they lead to stays. Files of somebody's stay too."""
    wanted = {one["path"] for one in manifest}
    for one in _hub_cache.files(snapshot.path):
        path = os.path.join(snapshot.path, one["path"])
        if one["path"] not in wanted and os.path.islink(path):
            os.unlink(path)


class _Partial:
    """A file that is not whole yet, written straight to the disk where the file system lets one.

    On unified memory a page cache full of weights is memory that the GPU lacks. `length` is how much of it there is.
    """

    def __init__(self, path: str, size: int) -> None:
        self._path, self._direct = path, True
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        found = os.fstat(self._descriptor).st_size
        self.length = 0 if found > size else found - found % _BLOCK
        os.ftruncate(self._descriptor, self.length)

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            os.fsync(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(self._descriptor)

    def read_again(self, digest: Any, buffer: memoryview) -> None:
        """Hash what an earlier run has brought."""
        left = self.length
        with open(self._path, "rb", buffering=0) as file:
            while left:
                count = file.readinto(buffer[: min(_BUFFER, left)])
                if not count:
                    raise ConnectionError("the partial file has become shorter")
                digest.update(buffer[:count])
                left -= count

    def append(self, data: memoryview) -> None:
        """Write the next bytes; only the last ones, which fill no whole block, go through the page cache."""
        while data:
            if self._direct and (len(data) % _BLOCK or self.length % _BLOCK):
                whole = len(data) - len(data) % _BLOCK if self.length % _BLOCK == 0 else 0
                if whole:
                    self.append(data[:whole])
                    data = data[whole:]
                self._direct = False
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            count = os.pwrite(self._descriptor, data, self.length)
            self.length += count
            data = data[count:]


class _Line:
    """A connection to the head, made when it is needed and made again after it was closed."""

    def __init__(self, source: tuple[str, int], secret: str) -> None:
        self._source, self._secret = source, secret
        self._connection: socket.socket | None = None

    def __str__(self) -> str:
        return f"{self._source[0]}:{self._source[1]}"

    def connected(self) -> socket.socket:
        """Return the connection, on which both sides have proved that they know the secret. Raises JobError."""
        if self._connection is None:
            self._connection = socket.create_connection(self._source, timeout=_CONNECT_S)
            self._connection.settimeout(_copy_server.LIMIT_S)
            self._greet(self._connection)
        return self._connection

    def _greet(self, connection: socket.socket) -> None:
        greeting = _copy_server.exactly(connection, len(_copy_server.GREETING) + _copy_server.NONCE)
        if not greeting.startswith(_copy_server.GREETING):
            raise JobError(f"{self} is not the head that offers the weights")
        theirs = greeting[len(_copy_server.GREETING) :]
        mine = secrets.token_bytes(_copy_server.NONCE)
        connection.sendall(mine + _copy_server.proof(self._secret, b"client", mine, theirs))
        try:
            answer = _copy_server.exactly(connection, _copy_server.NONCE)
        except ConnectionError as error:
            raise JobError(f"{self} does not accept this run's secret: run again from the start") from error
        if not hmac.compare_digest(answer, _copy_server.proof(self._secret, b"server", theirs, mine)):
            raise JobError(f"{self} does not know this run's secret; nothing was taken")

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Copier:
    """Several streams that take files from one list until it is empty or one of them fails."""

    def __init__(
        self,
        snapshot: Snapshot,
        source: tuple[str, int],
        secret: str,
        blobs: str,
        mode: str,
        report: Report,
        total: int,
    ) -> None:
        self._snapshot, self._source, self._secret, self._blobs = snapshot, source, secret, blobs
        self._hashing = mode == _manifest.CONTENT
        self._counter = _snapshot.Counter("copying", total, report)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._hashes: dict[str, str] = {}
        self.received = 0

    def run(self, lacking: Mapping[str, Mapping[str, Any]], streams: int) -> dict[str, str]:
        """Copy the files and return their hashes by target. Raises the first failure."""
        left: queue.SimpleQueue[tuple[str, Mapping[str, Any]]] = queue.SimpleQueue()
        # The largest first, so that none of them is left over at the end.
        for item in sorted(lacking.items(), key=lambda item: -item[1]["size"]):
            left.put(item)
        threads = [
            threading.Thread(target=self._stream, args=(left,), daemon=True)
            for _ in range(max(1, min(streams, len(lacking))))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure:
            raise self._failure
        return self._hashes

    def _stream(self, left: queue.SimpleQueue[tuple[str, Mapping[str, Any]]]) -> None:
        line = _Line(self._source, self._secret)
        # At the start of a page, as writing past the page cache wants it.
        buffer = memoryview(mmap.mmap(-1, _BUFFER))
        try:
            while not self._stop.is_set():
                try:
                    target, one = left.get_nowait()
                except queue.Empty:
                    return
                self._file(line, target, one, buffer)
        except _Stopped:
            pass
        except (OSError, JobError) as error:
            with self._lock:
                self._failure = self._failure or self._explained(error)
            self._stop.set()
        finally:
            line.close()

    def _file(self, line: _Line, target: str, one: Mapping[str, Any], buffer: memoryview) -> None:
        """Bring one file, over as many connections as it takes."""
        partial = _partial(self._blobs, one)
        failures = wrong = 0
        while True:
            before = _size(partial) or 0
            try:
                found = self._receive(line.connected(), partial, one, buffer)
            except (ConnectionError, socket.timeout) as error:
                line.close()
                failures = 0 if (_size(partial) or 0) > before else failures + 1
                if failures >= _MOST_FAILURES:
                    raise JobError(
                        f"the head at {line} sends no more of {one['path']} ({error}). What has arrived stays; run "
                        "again, and it goes on"
                    ) from error
                self._stop.wait(failures)
                continue
            right = _manifest.promised(one)
            if not found or not right or len(right) != len(found) or found == right:
                break
            os.unlink(partial)
            wrong += 1
            if wrong == 2:
                raise JobError(
                    f"{one['path']} arrived twice with another content than {right[:12]}, the hash it should have: "
                    "verify the head's copy with sparkpair_verify=content"
                )
        os.chmod(partial, 0o644)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(partial, target)
        if found:
            self._hashes[target] = found

    def _receive(self, connection: socket.socket, partial: str, one: Mapping[str, Any], buffer: memoryview) -> str:
        """Append to a partial file what is missing of it, and return the hash of the whole, empty without hashing."""
        digest = _manifest.hasher(one, one["size"]) if self._hashing else None
        with _Partial(partial, one["size"]) as file:
            if digest:
                file.read_again(digest, buffer)
            self._counter.add(file.length)
            asked = {"repo": self._snapshot.repo, "path": one["path"], "offset": file.length}
            _copy_server.send_line(connection, asked)
            answer = _copy_server.read_line(connection)
            if answer.get("size") != one["size"]:
                found = answer.get("error") or f"it has {answer.get('size')} bytes there instead of {one['size']}"
                raise JobError(f"the head cannot send {one['path']}: {found}. Run again, so that it is verified there")
            while file.length < one["size"]:
                filled = 0
                try:
                    wanted = min(_BUFFER, one["size"] - file.length)
                    while filled < wanted:
                        if self._stop.is_set():
                            raise _Stopped
                        count = connection.recv_into(buffer[filled:wanted])
                        if not count:
                            raise ConnectionError("the connection was closed")
                        filled += count
                finally:
                    # Also what came before the line broke.
                    file.append(buffer[:filled])
                    if digest:
                        digest.update(buffer[:filled])
                    with self._lock:
                        self.received += filled
                    self._counter.add(filled)
        return str(digest.hexdigest()) if digest else ""

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self._snapshot.cache).free
            return JobError(
                f"the disk of {self._snapshot.cache} is full ({amount(free)} free). What has arrived stays; free "
                "some space and run again, and the copy goes on"
            )
        return error
