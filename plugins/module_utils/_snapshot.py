# SPDX-License-Identifier: Apache-2.0
"""One snapshot on one host: how it is, and the long work on it as a job, hashing and downloading.

Whatever is done to a snapshot is done by one job at a time; what was verified is kept beside it. Private to the
collection, may change at any time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _checkpoint, _hub_cache, _manifest
from ansible_collections.sparkpair.serving.plugins.module_utils._job import Job, Report

ABSENT, DAMAGED, UNVERIFIED, COMPLETE = "absent", "damaged", "unverified", "complete"
# Left free when the rest of a disk is enough for what is missing.
MARGIN_BYTES = 5 * 10**9
_VERIFIED = "verified"
_TELL_S = 1.0


def amount(size: float) -> str:
    """Return a number of bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of `repo` at the commit `revision` in the cache directory `cache`, with its job in `state_dir`."""

    cache: str
    state_dir: str
    repo: str
    revision: str

    @property
    def path(self) -> str:
        """Its directory."""
        return _hub_cache.snapshot(self.cache, self.repo, self.revision)

    @property
    def job(self) -> Job:
        """The job of whatever takes long."""
        name = f"{self.repo.replace('/', '--')}@{self.revision}"
        return Job(os.path.join(os.path.abspath(self.state_dir), "weights", name))

    @property
    def owner(self) -> tuple[int, int]:
        """Who the cache belongs to: the account that whatever is made in it should belong to."""
        nearest = self.cache
        while not os.path.isdir(nearest):
            nearest = os.path.dirname(nearest)
        seen = os.stat(nearest)
        return seen.st_uid, seen.st_gid


def look(snapshot: Snapshot, mode: str, expected: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return how a snapshot is, without reading a weight.

    `state` is absent, damaged, unverified (right in names and sizes, and contents not hashed since they changed) or
    complete; `problems` name what is wrong; `files` are the manifest, `unread_bytes` how much of
    it has no verified content, `digest` is one hash of it all. Without `expected` files those known from the last
    verification are taken, and without these the checkpoint's own index.
    """
    found = _hub_cache.files(snapshot.path)
    kept = snapshot.job.kept(_VERIFIED)
    verified = kept.get("verified") or {}
    wanted = list(expected) or kept.get("expected") or []
    problems = _manifest.compare(found, wanted)
    if found and not wanted and not problems:
        problems = _checkpoint.given(snapshot.path)["problems"]
    problems += _still_wrong(found, kept.get("wrong") or {})
    unread = _manifest.unread(found, verified) if mode == _manifest.CONTENT else []
    if not found:
        state = ABSENT
    elif problems:
        state = DAMAGED
    else:
        state = UNVERIFIED if unread else COMPLETE
    return {
        "repo": snapshot.repo,
        "revision": snapshot.revision,
        "path": snapshot.path,
        "state": state,
        "problems": problems,
        "files": _manifest.with_hashes(found, verified),
        "unread_bytes": _manifest.total(unread),
        "digest": _manifest.digest(found) if state == COMPLETE else "",
    }


def is_known(snapshot: Snapshot) -> bool:
    """Say whether the files that a snapshot should have are known from an earlier verification."""
    return bool(snapshot.job.kept(_VERIFIED).get("expected"))


def known_files(snapshot: Snapshot, seen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the files that a snapshot should have by an earlier verification, else those that it has."""
    kept = snapshot.job.kept(_VERIFIED).get("expected")
    return kept or [{key: one[key] for key in ("path", "size", "blob")} for one in seen["files"]]


def _still_wrong(found: Sequence[Mapping[str, Any]], wrong: Mapping[str, Any]) -> list[str]:
    """Return the problems of files that were found with a wrong content and have not changed since."""
    return [
        wrong[one["path"]]["problem"]
        for one in found
        if one["stamp"] and wrong.get(one["path"], {}).get("stamp") == one["stamp"]
    ]


def verify(
    snapshot: Snapshot,
    job: Job,
    mode: str,
    expected: Sequence[Mapping[str, Any]],
    report: Report,
    hashed: Mapping[str, str] | None = None,
) -> list[str]:
    """Hash what is not verified, keep what was found, and return what is wrong with contents. Raises OSError.

    Runs in the job, which is the snapshot's. With the mode `size` nothing is hashed, and the expected files are kept.
    `hashed` are the hashes of files that were just written.
    """
    found = _hub_cache.files(snapshot.path)
    verified = dict(job.kept(_VERIFIED).get("verified") or {})
    unread = _manifest.unread(found, verified) if mode == _manifest.CONTENT else []
    known_now = dict(hashed or {})
    unread = [one for one in unread if one["path"] not in known_now]
    counter = Counter("verifying", _manifest.total(unread), report)
    hashes = {**known_now, **_manifest.hash_files(snapshot.path, unread, counter.add)}
    problems, right = _manifest.judge(found, hashes, expected)
    known = {one["path"]: verified[one["path"]] for one in found if one["path"] in verified}
    wrong = {}
    for one in found:
        # Problems begin with the path that they are about.
        about = [problem for problem in problems if problem.startswith(f"{one['path']} ")]
        if about and one["path"] in hashes:
            wrong[one["path"]] = {"stamp": one["stamp"], "problem": about[0]}
            known.pop(one["path"], None)
    listed = [dict(one) for one in expected]
    job.keep(_VERIFIED, {"verified": {**known, **right}, "expected": listed, "wrong": wrong})
    return problems


class Counter:
    """Counts bytes of several threads and tells of them every second."""

    def __init__(self, doing: str, total: int, report: Report) -> None:
        self._lock = threading.Lock()
        self._doing, self._total, self._report = doing, total, report
        self._done, self._told = 0, 0.0

    def add(self, count: int) -> None:
        """Count some bytes."""
        with self._lock:
            # What is done twice, because it was wrong, is not more than all.
            self._done = min(self._done + count, self._total)
            now = time.monotonic()
            if now - self._told >= _TELL_S:
                self._told = now
                self._report({"doing": self._doing, "done": self._done, "total": self._total})
