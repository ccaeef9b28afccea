# SPDX-License-Identifier: Apache-2.0
"""Logs of ranks that have ended: saved compressed, never over one another, the newest few of each rank kept.

A saved log is `<YYYYmmdd-HHMMSS>-<name>.log.gz` in UTC, so that names sort by age through a change of
clocks; a second one of the same second is `<YYYYmmdd-HHMMSS>.1-<name>.log.gz`. Private to the collection,
may change at any time.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import time


def save_log(log: str, log_dir: str, name: str, header: str, when: float | None = None) -> str:
    """Compress the file `log` into `log_dir` and return the path of what was written.

    `header` is put before the log as its first line. `when` is the second in the name (default: now). Raises
    OSError and then leaves nothing of its own behind; the log itself is never touched.
    """
    os.makedirs(log_dir, mode=0o700, exist_ok=True)
    saved = _reserve(log_dir, name, time.strftime("%Y%m%d-%H%M%S", time.gmtime(when)))
    unfinished = f"{saved}.new"
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(log, "rb") as source, open(descriptor, "wb") as raw:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw) as target:
                target.write(header.encode("utf-8") + b"\n")
                shutil.copyfileobj(source, target, 1 << 20)
            raw.flush()
            os.fsync(raw.fileno())
        # Over its own reservation, which is empty.
        os.replace(unfinished, saved)
    except OSError:
        for path in (unfinished, saved):
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
    return saved


def saved_logs(log_dir: str, name: str) -> list[str]:
    """Return the saved logs of the rank `name`, the newest first.

    Raises OSError when the directory is unreadable.
    """
    pattern = re.compile(rf"(\d{{8}}-\d{{6}})(?:\.(\d+))?-{re.escape(name)}\.log\.gz")
    try:
        entries = os.listdir(log_dir)
    except FileNotFoundError:
        return []
    found = [(match[1], int(match[2] or 0), match[0]) for match in map(pattern.fullmatch, entries) if match]
    return [os.path.join(log_dir, entry) for _second, _counter, entry in sorted(found, reverse=True)]


def prune(log_dir: str, name: str, keep: int) -> None:
    """Remove all but the newest `keep` saved logs of the rank `name`. Raises OSError."""
    for path in saved_logs(log_dir, name)[keep:]:
        os.unlink(path)


def _reserve(log_dir: str, name: str, second: str) -> str:
    """Create an empty file under the first free name of this second, so that nobody else can take it."""
    counter = 0
    while True:
        stamp = f"{second}.{counter}" if counter else second
        path = os.path.join(log_dir, f"{stamp}-{name}.log.gz")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            counter += 1
        else:
            return path
