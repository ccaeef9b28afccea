# SPDX-License-Identifier: Apache-2.0
"""Whether a snapshot is what it should be, file by file: paths, sizes and contents, and what was verified before.

The content of a blob is hashed against its name, several files at a time and past the page cache. What was verified is
written down with each file's stamp, so that looking again costs a stat a file. Private to the collection, may change at
any time.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

# Not from the package, which would load it when a job has no way to it any more.
from concurrent.futures.thread import ThreadPoolExecutor
from typing import Any

SIZE, CONTENT = "size", "content"
FOREIGN = "does not belong there"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT = re.compile(r"[0-9a-f]{40}")
_CHUNK = 4 << 20
# What was read is let go of in steps of this size: on unified memory the page cache is the GPU's memory.
_DROP = 64 << 20
_MOST_HASHERS = 8

Files = Sequence[Mapping[str, Any]]
Told = Callable[[int], None]


def compare(found: Files, expected: Files) -> list[str]:
    """Return what differs in names and sizes from what is expected, in byte order; nothing is read.

    Without expected files only links that lead nowhere are wrong.
    """
    by_path = {one["path"]: one for one in found}
    wanted = {one["path"]: one for one in expected}
    problems = []
    for path in sorted(by_path.keys() | wanted.keys(), key=os.fsencode):
        here, there = by_path.get(path), wanted.get(path)
        if here is None:
            problems.append(f"{path} is missing")
        elif here["size"] is None:
            problems.append(f"{path} is a link that leads nowhere")
        elif there is None:
            if expected:
                problems.append(f"{path} {FOREIGN}")
        elif here["size"] != there["size"]:
            word = "is cut off:" if here["size"] < there["size"] else "is too long:"
            problems.append(f"{path} {word} {here['size']} bytes instead of {there['size']}")
    return problems


def unread(found: Files, verified: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the files whose content has not been verified since it last changed."""
    return [
        dict(one)
        for one in found
        if one["size"] is not None and verified.get(one["path"], {}).get("stamp") != one["stamp"]
    ]


def digest(found: Files) -> str:
    """Return one hash of a snapshot's paths, sizes and blob names: equal on hosts whose snapshots are equal."""
    lines = "".join(f"{one['path']}\0{one['size']}\0{one['blob']}\n" for one in found)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def promised(one: Mapping[str, Any]) -> str:
    """Return the hash that a file's content must have by its blob's name or by `hash`, empty when nothing promises."""
    name = str(one.get("blob") or "")
    if _SHA256.fullmatch(name) or _GIT.fullmatch(name):
        return name
    return str(one.get("hash") or "")


def hash_files(place: str, files: Files, told: Told = lambda count: None) -> dict[str, str]:
    """Return the hash of every file by path, hashed in parallel: SHA-256, or git's where the blob's name is git's.

    `told` is called from other threads with the number of bytes that were just read. Raises OSError.
    """
    workers = max(1, min(_MOST_HASHERS, os.cpu_count() or 1, len(files)))
    with ThreadPoolExecutor(workers) as pool:
        # The largest first, so that none of them is left over at the end.
        order = sorted(files, key=lambda one: -int(one["size"]))
        jobs = {
            one["path"]: pool.submit(_hash, os.path.join(place, one["path"]), hasher(one, one["size"]), told)
            for one in order
        }
        return {path: job.result() for path, job in jobs.items()}


def hasher(one: Mapping[str, Any], size: int) -> Any:
    """Return a new hash object of the kind that a file's promise needs."""
    if _GIT.fullmatch(promised(one)):
        digest_ = hashlib.sha1()  # what git calls a blob's name; nothing secret rests on it
        digest_.update(b"blob %d\0" % size)
        return digest_
    return hashlib.sha256()


def _hash(path: str, digest_: Any, told: Told) -> str:
    buffer = memoryview(bytearray(_CHUNK))
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        done = dropped = 0
        while count := file.readinto(buffer):
            digest_.update(buffer[:count])
            done += count
            told(count)
            if done - dropped >= _DROP:
                os.posix_fadvise(file.fileno(), dropped, done - dropped, os.POSIX_FADV_DONTNEED)
                dropped = done
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return str(digest_.hexdigest())


def judge(found: Files, hashes: Mapping[str, str], expected: Files) -> tuple[list[str], dict[str, Any]]:
    """Return what is wrong with contents that were hashed, and what is verified now, by path.

    A hash is compared with the blob's name, and with the `hash` of the expected file where there is one.
    """
    wanted = {one["path"]: one for one in expected}
    problems, verified = [], {}
    for one in found:
        path = one["path"]
        if path not in hashes:
            continue
        right = promised(one) or promised(wanted.get(path, {}))
        # A promise of the other kind cannot be compared with what was computed.
        if right and len(right) == len(hashes[path]) and right != hashes[path]:
            problems.append(f"{path} has other content than {right[:12]}, the hash it should have")
        else:
            verified[path] = {"stamp": one["stamp"], "hash": hashes[path]}
    return problems, verified


def with_hashes(found: Files, verified: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the manifest for another host: `path`, `size`, `blob`, and `hash` where it is known."""
    return [
        {
            "path": one["path"],
            "size": one["size"],
            "blob": one["blob"],
            "hash": verified.get(one["path"], {}).get("hash", ""),
        }
        for one in found
    ]


def total(files: Iterable[Mapping[str, Any]]) -> int:
    """Return the bytes of some files."""
    return sum(int(one["size"] or 0) for one in files)
