# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face cache on a host: where a snapshot lies, which files it has, and which blobs are there.

A snapshot's files are links to blobs, whose names are their hashes; a blob may itself be a link into a store that
several repositories share. Nothing is changed here. Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import Any

_COMMIT = re.compile(r"[0-9a-f]{40}")
# What begins the name of a blob that stands for a file outside the repository's own blobs, whose name promises nothing.
LINKED = "linked-"
PARTIAL = ".sparkpair-partial"


def root(cache: str) -> str:
    """Return the cache directory: what was set, else the login's HF_HOME, else ~/.cache/huggingface."""
    return os.path.abspath(os.path.expanduser(cache or os.environ.get("HF_HOME") or "~/.cache/huggingface"))


def repository(cache: str, repo: str) -> str:
    """Return the directory of a repository in the cache."""
    return os.path.join(cache, "hub", f"models--{repo.replace('/', '--')}")


def snapshot(cache: str, repo: str, revision: str) -> str:
    """Return the directory of a snapshot in the cache."""
    return os.path.join(repository(cache, repo), "snapshots", revision)


def main_revision(cache: str, repo: str) -> str:
    """Return the commit that the cache knows as main, empty without one."""
    with contextlib.suppress(OSError), open(os.path.join(repository(cache, repo), "refs", "main"), "rb") as file:
        text = file.read(64).decode("ascii", errors="replace").strip()
        return text if _COMMIT.fullmatch(text) else ""
    return ""


def is_commit(revision: str) -> bool:
    """Say whether a revision is a whole commit, which never changes its meaning."""
    return bool(_COMMIT.fullmatch(revision))


def files(place: str) -> list[dict[str, Any]]:
    """Return the files of a snapshot in byte order of their paths.

    Each has `path` (relative), `blob` (its name, empty for a plain file), `size` and `stamp` (what changes when the
    content does); both are None for a link that leads nowhere. Without the directory there are none.
    """
    repo = os.path.dirname(os.path.dirname(place))
    found = []
    for folder, _, names in os.walk(place):
        for name in names:
            full = os.path.join(folder, name)
            size, stamp = _stamp(full)
            path = os.path.relpath(full, place)
            found.append({"path": path, "blob": _blob(full, repo), "size": size, "stamp": stamp})
    return sorted(found, key=lambda one: os.fsencode(one["path"]))


def _stamp(path: str) -> tuple[int | None, list[int] | None]:
    try:
        seen = os.stat(path)
    except OSError:
        return None, None
    # The time of the inode's change cannot be set back, as that of the content can.
    return seen.st_size, [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]


def _blob(path: str, repo: str) -> str:
    """Return the name of the blob that a snapshot's file is a link to."""
    try:
        target = os.readlink(path)
    except OSError:
        return ""
    place, name = os.path.split(os.path.normpath(os.path.join(os.path.dirname(path), target)))
    return name if place == os.path.join(repo, "blobs") else f"{LINKED}{name}"


def blobs(cache: str, repo: str) -> dict[str, int]:
    """Return the sizes of a repository's blobs by name, links followed; unfinished downloads are none."""
    found = {}
    with contextlib.suppress(OSError), os.scandir(os.path.join(repository(cache, repo), "blobs")) as entries:
        for entry in entries:
            if not entry.name.endswith((".incomplete", PARTIAL)):
                with contextlib.suppress(OSError):
                    seen = entry.stat()
                    if stat.S_ISREG(seen.st_mode):
                        found[entry.name] = seen.st_size
    return found


def unfinished_bytes(cache: str, repo: str) -> int:
    """Return how many bytes unfinished downloads of a repository have taken so far."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(os.path.join(repository(cache, repo), "blobs")) as entries:
        for entry in entries:
            if entry.name.endswith((".incomplete", PARTIAL)):
                with contextlib.suppress(OSError):
                    # A download may reserve its whole length at once; what it has written are its blocks.
                    seen = entry.stat()
                    total += min(seen.st_size, seen.st_blocks * 512)
    return total


def missing_bytes(files_: list[dict[str, Any]], blobs_: dict[str, int]) -> int:
    """Return how many bytes of a snapshot's files are in no blob: those whose blob is absent or of another size."""
    wanted = {one["blob"] or one["path"]: one["size"] for one in files_}
    return sum(size for name, size in wanted.items() if blobs_.get(name) != size)
