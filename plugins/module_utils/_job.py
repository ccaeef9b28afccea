# SPDX-License-Identifier: Apache-2.0
"""Work that takes longer than a task should: a process of its own on the host that outlives the play, and is found
again.

A job has a directory with `lock` (held while it runs), `about` (what it does, and its process), `progress`, `result`,
and what else it keeps there. A play that ends early leaves it running; the next one finds it and waits for it. Private
to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Report = Callable[[Mapping[str, Any]], None]


class JobError(Exception):
    """Why a job did not do what it should, for a person: what was found, where, and what to do."""


class Job:
    """The job of a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self._place: int | None = None

    def start(
        self,
        about: Mapping[str, Any],
        work: Callable[[Report], Mapping[str, Any]],
        owner: tuple[int, int] | None = None,
        keep: Sequence[int] = (),
    ) -> bool:
        """Start the job unless it runs, and say whether it was started.

        `about` is what tells it from another one. `work` gets a function to tell its progress by, and returns the
        result; a JobError or an OSError it raises becomes `error` of the result. With `owner` (uid and gid) a job of
        root's runs as that account. The descriptors in `keep` stay open in it. Raises OSError.
        """
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        lock = os.open(self._path("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        for name in ("progress", "result"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name))
        if owner and os.geteuid() == 0:
            os.chown(self.directory, *owner)
            # Another account may not come through the directories above this one.
            self._place = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            self._detached(lock, dict(about), work, owner, keep)
        os.close(lock)
        if self._place is not None:
            os.close(self._place)
            self._place = None
        # The first child writes `about` and makes the one that works, so that the job is nobody's child.
        os.waitpid(child, 0)
        return True

    def _detached(
        self,
        lock: int,
        about: dict[str, Any],
        work: Callable[[Report], Mapping[str, Any]],
        owner: tuple[int, int] | None,
        keep: Sequence[int],
    ) -> None:
        """Become a process without parent, terminal or the play's pipes, do the work, and end. Does not return."""
        code = 1
        try:
            os.setsid()
            worker = os.fork()
            if worker:
                self.keep("about", {**about, "pid": worker})
                os._exit(0)
            if owner and os.geteuid() == 0:
                become(*owner)
            os.chdir("/")
            nowhere = os.open(os.devnull, os.O_RDWR)
            log = self._open("log")
            for descriptor, target in ((nowhere, 0), (log, 1), (log, 2)):
                os.dup2(descriptor, target)
            # The play's pipes must close with the play, the lock is held for as long as this runs.
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor > 2 and descriptor not in (lock, self._place, *keep):
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
            signal.signal(signal.SIGTERM, _ended)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self.keep("result", {"error": "", **self._done(work)})
            code = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode(errors="replace"))
        os._exit(code)

    def _done(self, work: Callable[[Report], Mapping[str, Any]]) -> dict[str, Any]:
        try:
            return dict(work(lambda progress: self.keep("progress", progress)))
        except JobError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"{error.filename or self.directory}: {error.strerror or error}"}

    def running(self) -> bool:
        """Say whether the job runs."""
        with contextlib.suppress(FileNotFoundError), open(self._path("lock"), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def about(self) -> dict[str, Any]:
        """Return what the job was started with, and its `pid`."""
        return self.kept("about")

    def progress(self) -> dict[str, Any]:
        """Return what the job told last, empty before that."""
        return self.kept("progress")

    def result(self) -> dict[str, Any]:
        """Return the result of a job that has ended; `error` is empty when all went well."""
        found = self.kept("result")
        if found:
            return found
        said = ""
        with contextlib.suppress(OSError), open(self._path("log"), encoding="utf-8", errors="replace") as file:
            said = (file.read().strip().splitlines() or [""])[-1]
        return {"error": f"it was ended from outside{f' ({said})' if said else ''}; run again, and it goes on"}

    def wait(self, seconds: float) -> bool:
        """Wait until the job has ended, at most so many seconds, and say whether it has."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            descriptor = os.pidfd_open(int(self.about().get("pid") or 0))
            try:
                # The number may be another process's by now, which only matters while the job runs.
                if self.running():
                    select.select([descriptor], [], [], seconds)
            finally:
                os.close(descriptor)
        return not self.running()

    def stop(self) -> None:
        """Have the job end, and wait for it."""
        if self.running():
            with contextlib.suppress(OSError, ValueError, TypeError):
                os.kill(int(self.about().get("pid") or 0), signal.SIGTERM)
                self.wait(10)

    def keep(self, name: str, data: Mapping[str, Any]) -> None:
        """Put something into the job's directory, whole or not at all. Raises OSError."""
        if self._place is None:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
        unfinished = f"{name}.{os.getpid()}"
        with open(self._open(unfinished), "w", encoding="utf-8") as file:
            json.dump(data, file, separators=(",", ":"))
        if self._place is None:
            os.replace(self._path(unfinished), self._path(name))
        else:
            os.replace(unfinished, name, src_dir_fd=self._place, dst_dir_fd=self._place)

    def kept(self, name: str) -> dict[str, Any]:
        """Return what was put into the job's directory, empty when there is nothing or it is broken."""
        with contextlib.suppress(OSError, ValueError):
            with open(self._open(name, os.O_RDONLY), encoding="utf-8") as file:
                found = json.load(file)
            return found if isinstance(found, dict) else {}
        return {}

    def _open(self, name: str, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> int:
        if self._place is None:
            return os.open(self._path(name), flags, 0o600)
        return os.open(name, flags, 0o600, dir_fd=self._place)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def become(uid: int, gid: int) -> None:
    """Go on as another account, for good."""
    try:
        user = pwd.getpwuid(uid)
        os.initgroups(user.pw_name, gid)
        home = user.pw_dir
    except KeyError:
        os.setgroups([])
        home = "/"
    os.setgid(gid)
    os.setuid(uid)
    os.environ["HOME"] = home


def _ended(signal_number: int, frame: Any) -> None:
    """End at once, and with the job every program that it started."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    os._exit(128 + signal_number)
