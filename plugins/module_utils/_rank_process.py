# SPDX-License-Identifier: Apache-2.0
"""Starting and stopping a rank as a supervised process, and what must be right before either.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _rank_supervisor, _saved_logs
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import ProcessHandle
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import (
    RankError,
    RankState,
    explain,
    observe,
    path_of,
    refuse_unknown_processes,
)

# What a rank gets of the environment of whoever starts it: the account's own. Anything else would make a rank
# depend on the shell it was started from.
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")
# Everything of a rank that its directory holds.
FILES = ("rank.log", "spec.json", "status.json", "supervisor.py", "lock")
# After SIGKILL only the kernel keeps a process, and rarely for long.
_KILL_WAIT_S = 10.0


def check_spec(spec: Any) -> None:
    """Raise RankError, naming every mistake, when `spec` is not a document a rank can be started from."""
    mistakes = []
    argv = spec.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(item, str) for item in argv):
        mistakes.append(f"argv must be a list of strings with at least the program, but is {argv!r}")
    elif "\0" in "".join(argv):
        mistakes.append("argv must not hold the character NUL, which no program's argument can")
    env = spec.get("env", {})
    if not isinstance(env, dict):
        mistakes.append(f"env must be a dictionary, but is {env!r}")
    else:
        for name, value in env.items():
            if not isinstance(value, str):
                mistakes.append(f"env.{name} must be a string, but is of type {type(value).__name__}: quote it")
            elif not name or "=" in name or "\0" in name + value:
                mistakes.append(f"env.{name!r} cannot be set: a name is not empty and without '=', neither has NUL")
    for name in ("cwd", "log"):
        value = spec.get(name)
        if value is not None and not (isinstance(value, str) and os.path.isabs(os.path.expanduser(value))):
            mistakes.append(f"{name} must be an absolute path, but is {value!r}")
    if mistakes:
        raise RankError("The option spec cannot be started from: " + "; ".join(mistakes) + ".")


def log_of(directory: str, spec: dict[str, Any]) -> str:
    """Return the path of the log a rank with this document writes."""
    return os.path.expanduser(spec.get("log") or path_of(directory, "rank.log"))


def base_environment() -> dict[str, str]:
    """Return the environment that a rank's own variables are added to."""
    found = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {"PATH": os.defpath, **found}


def missing_for(directory: str, spec: dict[str, Any]) -> list[str]:
    """Return what the rank needs and this machine lacks, one sentence each with the remedy."""
    missing = []
    cwd = os.path.expanduser(spec.get("cwd") or "")
    if cwd and not os.path.isdir(cwd):
        missing.append(f"The rank's working directory {cwd} does not exist: create it, or change spec.cwd.")
    program = spec["argv"][0]
    search = {**base_environment(), **spec.get("env", {})}["PATH"]
    where = os.path.join(cwd or directory, program) if os.sep in program else program
    if shutil.which(where, path=search) is None:
        found = "is not an executable file" if os.path.exists(where) else "does not exist"
        place = f"{where} {found}" if os.sep in program else f"{program} is nowhere in PATH ({search})"
        missing.append(f"The rank's program {place}: install it, or change spec.argv[0].")
    return missing


@contextlib.contextmanager
def sole_worker(directory: str) -> Iterator[None]:
    """Hold the rank's directory, which exists, against another play. Raises RankError when one has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RankError(
                f"Another play is changing the rank in {directory} at this moment: wait for it, then run again."
            ) from exc
        yield
    finally:
        os.close(descriptor)


def start(directory: str, name: str, spec: dict[str, Any], spec_hash: str, timeout_s: float) -> RankState:
    """Start a rank in its existing directory and return its state.

    Raises RankError, and then no rank runs.
    """
    log = log_of(directory, spec)
    try:
        _rank_supervisor.write_json(path_of(directory, "spec.json"), spec)
        _rank_supervisor.write_atomically(path_of(directory, "supervisor.py"), inspect.getsource(_rank_supervisor))
        os.makedirs(os.path.dirname(log), mode=0o700, exist_ok=True)
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as exc:
        raise explain(exc, f"prepare the start of {name}", directory) from exc
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(os.close, log_fd)
        lock_fd = _take_lock(directory)
        cleanup.callback(os.close, lock_fd)
        report_fd, supervisor_end = os.pipe()
        cleanup.callback(os.close, report_fd)
        command = [
            sys.executable,
            path_of(directory, "supervisor.py"),
            name,
            *("--log", log),
            *("--log-offset", str(os.fstat(log_fd).st_size)),
            *("--spec-hash", spec_hash),
            *("--report-fd", str(supervisor_end)),
            *("--lock-fd", str(lock_fd)),
        ]
        try:
            supervisor = subprocess.Popen(
                command,
                # Not in the rank's directory, nor in the play's temporary one: both may be removed.
                cwd="/",
                env=base_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                start_new_session=True,
                pass_fds=[supervisor_end, lock_fd],
            )
        except OSError as exc:
            raise explain(exc, f"start the supervisor of {name}", sys.executable) from exc
        finally:
            os.close(supervisor_end)
        report = _read_report(report_fd, timeout_s)
    if report is None:
        supervisor.kill()
        raise RankError(
            f"The supervisor of {name} ended, or took longer than {timeout_s:g} s, without saying that the rank was "
            f"started. What it wrote is at the end of {log}. Raise start_timeout if this machine is very busy."
        )
    if "pid" not in report:
        supervisor.wait()
        exc = OSError(report.get("errno"), report.get("error"), report.get("path") or spec["argv"][0])
        raise explain(exc, f"start {name} in {directory}", directory)
    return observe(directory)


def stop(state: RankState, directory: str, timeout_s: float) -> RankState:
    """Stop a running rank: gracefully for `timeout_s` seconds, then by force. Returns how it ended.

    Raises RankError when it cannot be stopped.
    """
    assert state.rank is not None
    try:
        supervisor = ProcessHandle.of(state.supervisor) if state.supervisor else None
        if supervisor is not None:
            with supervisor:
                supervisor.send(signal.SIGTERM)
                if not supervisor.wait(timeout_s):
                    supervisor.send(_rank_supervisor.KILL_SIGNAL)
                    supervisor.wait(_KILL_WAIT_S)
        else:
            # Somebody killed the supervisor: the rank's group is signalled directly and its exit code is
            # lost.
            rank = ProcessHandle.of(state.rank)
            if rank is not None:
                with rank:
                    rank.send_to_group(signal.SIGTERM)
                    if not rank.wait(timeout_s):
                        rank.send_to_group(signal.SIGKILL)
                        rank.wait(_KILL_WAIT_S)
    except PermissionError as exc:
        raise RankError(
            f"{state.name} runs as process {state.rank.pid} of another user, so it was not stopped. Run as "
            f"that "
            "user, or with become."
        ) from exc
    ended = observe(directory)
    if ended.running:
        raise RankError(
            f"{state.name} (process {state.rank.pid}) has not ended even {_KILL_WAIT_S:g} s after it was "
            f"killed: the "
            "kernel holds it, which usually means a device or a network file system that does not answer. "
            "Look at "
            f"/proc/{state.rank.pid}/stack and the kernel's log; only a reboot may end it."
        )
    return ended


def put_log_away(directory: str, state: RankState, name: str, log_dir: str, keep: int) -> list[str]:
    """Save the log of an ended rank compressed, keep the newest `keep` of them, and remove it from its directory.

    Returns the path of what was saved. Raises OSError, and then the log is where it was.
    """
    log = state.log or path_of(directory, "rank.log")
    saved = []
    if not os.path.exists(log):
        return saved
    if keep > 0:
        header = (
            f"# {name}, started {state.started_at or 'at an unknown time'}, {state.in_words()}"
            f" at {state.ended_at or 'an unknown time'}, spec {state.spec_hash or 'unknown'}"
        )
        saved.append(_saved_logs.save_log(log, log_dir, name, header))
        _saved_logs.prune(log_dir, name, keep)
    os.unlink(log)
    return saved


def forget(directory: str) -> None:
    """Remove the files of a rank that does not run, all but a log that could not be saved, and its directory."""
    for name in FILES:
        if name != "rank.log":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path_of(directory, name))
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def _take_lock(directory: str) -> int:
    """Return a descriptor that holds the rank's lock. Raises RankError when a process of the rank has it."""
    path = path_of(directory, "lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise explain(exc, "lock the rank's directory", path) from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        refuse_unknown_processes(directory)
        raise RankError(f"A process of another user holds {path}: end the rank it belongs to first.") from exc
    return descriptor


def _read_report(descriptor: int, timeout_s: float) -> dict[str, Any] | None:
    """Return what the supervisor reports, or None when it ends without a report or takes too long."""
    deadline = time.monotonic() + timeout_s
    text = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(descriptor, 65536) if ready else b""
        if not piece:
            break
        text += piece
    try:
        return json.loads(text)
    except ValueError:
        return None
