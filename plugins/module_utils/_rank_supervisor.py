# SPDX-License-Identifier: Apache-2.0
"""The supervisor of one rank: starts it, passes signals on, and writes down how it ended.

rank_process copies this file into the rank's directory as supervisor.py and runs that copy in a session of
its own, so that a process list shows whose supervisor it is, and so that the rank outlives the play and the
login that started it. For that reason it imports nothing but the standard library.

    supervisor.py NAME --log PATH --log-offset BYTES --spec-hash HEX --report-fd N --lock-fd N

It reads spec.json beside itself; its output, and the rank's, is the log already. Over the report descriptor
it says one line of JSON: the rank's process id, or why it could not be started. SIGTERM stops the rank
gracefully, SIGUSR1 kills it. The lock descriptor is inherited by the rank: the lock is free only when
neither of the two runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
KILL_SIGNAL = signal.SIGUSR1
WATCHED_SIGNALS = {*STOP_SIGNALS, KILL_SIGNAL, signal.SIGCHLD}


def boot_id() -> str:
    """Return the kernel's identity of this boot: process ids of another boot mean nothing."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on (the third one).

    Raises OSError without the process.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The second field is the program's name in parentheses and may contain anything, parentheses too.
        return file.read().rpartition(")")[2].split()


def start_ticks(pid: int) -> int:
    """Return when the process started, in clock ticks since boot: with the id it names one process of a boot."""
    return int(stat_fields(pid)[19])


def directory_id(directory: str) -> str:
    """Return what tells a directory from a copy of it: its device and inode."""
    found = os.stat(directory)
    return f"{found.st_dev}:{found.st_ino}"


def utc_now() -> str:
    """Return this second in UTC, as 2026-11-29T21:30:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def write_atomically(path: str, text: str) -> None:
    """Write a file that only its owner reads, so that a reader sees the old content or the new one.

    Raises OSError.
    """
    unfinished = f"{path}.new"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def write_json(path: str, doc: dict[str, Any] | list[Any]) -> None:
    """Write `doc` as `write_atomically` does."""
    write_atomically(path, json.dumps(doc, indent=1, sort_keys=True) + "\n")


def _with_default_signals() -> None:
    """Undo in the rank what the supervisor, or whoever started it, did to signals."""
    for number in (*STOP_SIGNALS, KILL_SIGNAL):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _signal_group(leader: int, number: int) -> None:
    """Signal every process of the rank's group.

    The leader is not reaped yet, so the group can only be the rank's.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _wait_for_end(child: subprocess.Popen[bytes]) -> int:
    """Pass signals on until the rank's first process ends. Returns its return code, negative for a signal."""
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        number = signal.sigwait(WATCHED_SIGNALS)
        if number == KILL_SIGNAL:
            _signal_group(child.pid, signal.SIGKILL)
        elif number != signal.SIGCHLD:
            _signal_group(child.pid, signal.SIGTERM)
    # What the rank leaves behind would keep its port and its memory.
    _signal_group(child.pid, signal.SIGKILL)
    return child.wait()


def _start(spec: dict[str, Any], directory: str, lock_fd: int) -> subprocess.Popen[bytes]:
    """Start the rank as the leader of its own session. Raises OSError."""
    return subprocess.Popen(
        spec["argv"],
        cwd=os.path.expanduser(spec.get("cwd") or directory),
        env={**os.environ, **spec.get("env", {})},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[lock_fd],
        preexec_fn=_with_default_signals,
    )


def main(arguments: list[str]) -> int:
    """Run one rank to its end. Returns 0, or 1 when the rank could not be started."""
    parser = argparse.ArgumentParser(description="Supervises one rank; started by the rank_process module.")
    parser.add_argument("name")
    parser.add_argument("--log", required=True)
    parser.add_argument("--log-offset", type=int, required=True)
    parser.add_argument("--spec-hash", required=True)
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    directory = os.path.dirname(os.path.abspath(__file__))
    status_path = os.path.join(directory, "status.json")
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
    child: subprocess.Popen[bytes] | None = None
    with open(options.report_fd, "w", encoding="utf-8") as report:
        try:
            with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
                spec = json.load(file)
            child = _start(spec, directory, options.lock_fd)
            status = {
                "version": 1,
                "name": options.name,
                "directory_id": directory_id(directory),
                "boot_id": boot_id(),
                "spec_hash": options.spec_hash,
                "supervisor": {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())},
                "rank": {"pid": child.pid, "start_ticks": start_ticks(child.pid)},
                "log": options.log,
                "log_offset": options.log_offset,
                "started_at": utc_now(),
                "ended_at": None,
                "exit_code": None,
                "exit_signal": None,
            }
            write_json(status_path, status)
        except OSError as exc:
            if child is not None:
                # A rank that is written down nowhere must not run.
                _signal_group(child.pid, signal.SIGKILL)
                child.wait()
            json.dump({"errno": exc.errno, "path": exc.filename, "error": exc.strerror}, report)
            return 1
        json.dump({"pid": child.pid}, report)
    returncode = _wait_for_end(child)
    ended = {"exit_code": returncode} if returncode >= 0 else {"exit_signal": -returncode}
    write_json(status_path, {**status, **ended, "ended_at": utc_now()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
