# SPDX-License-Identifier: Apache-2.0
"""What is known of a rank from its directory, without changing anything.

The directory holds spec.json (the document the rank was started with), status.json (its processes and its
end), supervisor.py, rank.log and lock. The lock is held while the rank or its supervisor runs, so that no
state file, lost or damaged, can lead to a second rank. Private to the collection, may change at any time.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pwd
import shutil
import signal
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import (
    ProcessHandle,
    ProcessIdentity,
    holders_of,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import boot_id, directory_id

# The supervisor writes the end down at once; when it has not after this long, it cannot.
_SETTLING_S = 5.0


class RankError(Exception):
    """Something about a rank that a person has to put right. The text names the path and the remedy."""


@dataclasses.dataclass(frozen=True)
class RankState:
    """A rank as its directory and the machine's processes show it.

    `exists` is False when the directory knows of no rank. `exit_code` and `exit_signal` are both None while
    it runs, and also when its end was not recorded; `note` then says why. `log_offset` is where this run
    begins in its log, in bytes.
    """

    exists: bool = False
    running: bool = False
    name: str = ""
    spec_hash: str = ""
    rank: ProcessIdentity | None = None
    supervisor: ProcessIdentity | None = None
    log: str = ""
    log_offset: int = 0
    started_at: str = ""
    ended_at: str | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    note: str = ""

    def in_words(self) -> str:
        """Return the state for a message: running, or how the rank ended."""
        if not self.exists:
            return "absent"
        if self.running:
            return "running"
        if self.exit_signal is not None:
            return f"ended by {signal_name(self.exit_signal)}"
        if self.exit_code is not None:
            return f"ended with exit code {self.exit_code}"
        return f"ended, exit code unknown: {self.note}"


def signal_name(number: int) -> str:
    """Return a signal's name with its number, for a message."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def path_of(directory: str, what: str) -> str:
    """Return the path of one of a rank's files: spec.json, status.json, rank.log, supervisor.py or lock."""
    return os.path.join(directory, what)


def observe(directory: str) -> RankState:
    """Return what is known of the rank in `directory`.

    Waits a few seconds when the rank is just ending. Raises RankError when status.json is damaged or
    unreadable, or when a process of the rank runs that status.json does not know of.
    """
    doc = _load_status(directory)
    if doc is None:
        refuse_unknown_processes(directory)
        return RankState()
    state = _judge(directory, doc)
    if state.running or state.ended_at or state.supervisor is None:
        return state
    handle = ProcessHandle.of(state.supervisor)
    if handle is not None:
        with handle:
            handle.wait(_SETTLING_S)
    settled = _load_status(directory)
    return state if settled is None else _judge(directory, settled)


def refuse_unknown_processes(directory: str) -> None:
    """Raise RankError when a process holds the rank's lock: a second rank must not be started beside it."""
    lock = path_of(directory, "lock")
    holders = holders_of(lock) if os.path.exists(lock) else []
    if holders:
        raise RankError(
            f"A process of the rank in {directory} still runs, but {path_of(directory, 'status.json')} does "
            f"not "
            f"know of it: process {_listed(holders)} holds {lock}. Nothing was started or stopped. Look at "
            f"it with "
            f"`ps -fp {','.join(map(str, holders))}`, end it, then run again."
        )


def explain(exc: OSError, doing: str, path: str) -> RankError:
    """Return the error for a person when the system refuses `doing` something with `path`."""
    path = exc.filename if isinstance(exc.filename, str) else path
    if exc.errno in (errno.EACCES, errno.EPERM):
        reason = (
            f"the user {_user()} has no permission for {path}. Give that user the directory (chown), or "
            f"choose "
            "another one."
        )
    elif exc.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = f"the disk that holds {path} is full{_free_space(path)}. Free some space, then run again."
    elif exc.errno == errno.EROFS:
        reason = f"{path} is on a file system that is mounted read-only. Choose another directory."
    elif exc.errno in (errno.ENOTDIR, errno.EEXIST):
        reason = f"a part of {path} is a file where a directory is needed. Move the file, then run again."
    else:
        reason = f"{path}: {exc.strerror or exc}."
    return RankError(f"Could not {doing}: {reason}")


def _load_status(directory: str) -> dict[str, Any] | None:
    """Return status.json, or None when there is none. Raises RankError when it is unreadable or damaged."""
    path = path_of(directory, "status.json")
    try:
        with open(path, encoding="utf-8") as file:
            doc = json.load(file)
        for process in ("supervisor", "rank"):
            int(doc[process]["pid"]), int(doc[process]["start_ticks"])
        for text in ("name", "directory_id", "boot_id", "spec_hash", "log", "started_at"):
            if not isinstance(doc[text], str):
                raise TypeError(text)
        if not isinstance(doc["log_offset"], int):
            raise TypeError("log_offset")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise explain(exc, "read the state of the rank", path) from exc
    except (ValueError, KeyError, TypeError) as exc:
        holders = holders_of(path_of(directory, "lock"))
        remedy = (
            f"Process {_listed(holders)} still runs for this rank: look at it with "
            f"`ps -fp {','.join(map(str, holders))}`, end it, then remove the file and run again."
            if holders
            else "No process runs for this rank: remove the file, then run again."
        )
        raise RankError(
            f"{path} is damaged ({type(exc).__name__}: {exc}), so it cannot say which process the rank is. "
            f"Nothing "
            f"was started or stopped. {remedy}"
        ) from exc
    return doc


def _judge(directory: str, doc: dict[str, Any]) -> RankState:
    """Return the state that a well-formed status.json and the running processes show."""
    rank = ProcessIdentity(int(doc["rank"]["pid"]), int(doc["rank"]["start_ticks"]), doc["boot_id"])
    supervisor = ProcessIdentity(int(doc["supervisor"]["pid"]), int(doc["supervisor"]["start_ticks"]), doc["boot_id"])
    own = doc["directory_id"] == directory_id(directory)
    ended_at = doc.get("ended_at")
    running = own and not ended_at and rank.runs()
    note = ""
    if not running and not ended_at:
        if not own:
            note = "the directory is a copy, the rank it tells of belongs to another one"
        elif doc["boot_id"] != boot_id():
            note = "the machine was restarted while it ran"
        else:
            note = "its supervisor was killed with it or could not write the end down"
    return RankState(
        exists=True,
        running=running,
        name=doc["name"],
        spec_hash=doc["spec_hash"],
        rank=rank,
        # The supervisor of a copied directory, or of an ended rank, is nobody to wait for or to signal.
        supervisor=supervisor if own and not ended_at else None,
        log=doc["log"],
        log_offset=doc["log_offset"],
        started_at=doc["started_at"],
        ended_at=ended_at,
        exit_code=doc.get("exit_code"),
        exit_signal=doc.get("exit_signal"),
        note=note,
    )


def _listed(pids: list[int]) -> str:
    return " and ".join(map(str, pids))


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _free_space(path: str) -> str:
    """Return how much of the disk is free, for a message; nothing when that cannot be found out."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    try:
        return f" ({shutil.disk_usage(path).free / 2**20:.1f} MiB free)"
    except OSError:
        return ""
