# SPDX-License-Identifier: Apache-2.0
"""The files by which playbooks and the pair's supervisors agree on who has the ranks of a host.

They lie in the directory `autostart` of the state directory: config.json (what was installed), secret, claim.json (a
playbook has the ranks, until when), stopped.json (a person wants none), state.json (what the supervisor does), boot
(the boot in which it was started last), and the locks `acting`, held for each act of the supervisor, and `alive`,
held for its life. Standard library only; private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import (
    boot_id,
    utc_now,
    write_atomically,
    write_json,
)


class StillActing(Exception):
    """The supervisor has not finished what it was doing in time."""


def place(state_dir: str, name: str = "") -> str:
    """Return the path of one of the files, or of their directory."""
    return os.path.join(state_dir, "autostart", name) if name else os.path.join(state_dir, "autostart")


def installed(state_dir: str) -> bool:
    """Say whether a supervisor is installed for this state directory."""
    return os.path.exists(place(state_dir, "config.json"))


def read(state_dir: str, name: str) -> dict[str, Any] | None:
    """Return one of the documents, None where it is not there or damaged."""
    with contextlib.suppress(OSError, ValueError), open(place(state_dir, name), encoding="utf-8") as file:
        found = json.load(file)
        return found if isinstance(found, dict) else None
    return None


def write(state_dir: str, name: str, document: dict[str, Any]) -> None:
    """Write one of the documents. Raises OSError."""
    write_json(place(state_dir, name), document)


def since_boot_s() -> float:
    """Return the seconds since this boot, those asleep as well."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def claim(state_dir: str, by: str, seconds: float) -> None:
    """Take the ranks of this host for a playbook, for so long unless it gives them back. Raises OSError.

    A reboot ends every claim: nobody can say then how far the playbook came.
    """
    until = {"boot": boot_id(), "until_s": since_boot_s() + seconds}
    write(state_dir, "claim.json", {"by": by, "at": utc_now(), **until})


def claimed(state_dir: str) -> str:
    """Return in words who has the ranks of this host instead of the supervisor, empty when nobody has."""
    found = read(state_dir, "claim.json") or {}
    try:
        left_s = float(found["until_s"]) - since_boot_s()
        if found["boot"] == boot_id() and left_s > 0:
            return f"{found['by']} has the ranks since {found['at']}"
    except (KeyError, ValueError, TypeError):
        pass
    return ""


def mark_stopped(state_dir: str, by: str) -> None:
    """Remember that a person wants no rank here, until somebody starts the pair again. Raises OSError."""
    write(state_dir, "stopped.json", {"by": by, "at": utc_now()})


def stopped(state_dir: str) -> str:
    """Return in words who stopped the pair by hand, empty when nobody has."""
    found = read(state_dir, "stopped.json")
    return f"was stopped by {found.get('by', '?')} at {found.get('at', '?')}" if found else ""


def clear(state_dir: str, *names: str) -> bool:
    """Remove documents and return whether one of them was there. Raises OSError."""
    removed = False
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place(state_dir, name))
            removed = True
    return removed


def first_in_this_boot(state_dir: str) -> bool:
    """Say whether the supervisor is started for the first time in this boot, and remember that it was.

    The first start is the machine's own; every later one is somebody's wish. Raises OSError.
    """
    path = place(state_dir, "boot")
    now, before = boot_id(), ""
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        before = file.read().strip()
    write_atomically(path, f"{now}\n")
    return now != before


@contextlib.contextmanager
def acting(state_dir: str) -> Iterator[None]:
    """Hold the right to act on the ranks of this host. Raises OSError."""
    descriptor = os.open(place(state_dir, "acting"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def wait_until_let_go(state_dir: str, seconds: float) -> None:
    """Wait until an act that the supervisor has begun is over; it sees the claim before its next one.

    For a program of one thread, as it uses the process's alarm. Raises StillActing and OSError.
    """

    def late(*_: object) -> None:
        raise StillActing

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with acting(state_dir):
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def hold_life(state_dir: str) -> int | None:
    """Return a descriptor that is held for the supervisor's life, None when another one lives. Raises OSError."""
    descriptor = os.open(place(state_dir, "alive"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def lives(state_dir: str) -> bool:
    """Say whether a supervisor runs for this state directory."""
    with contextlib.suppress(OSError):
        descriptor = os.open(place(state_dir, "alive"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def told(state_dir: str) -> dict[str, Any] | None:
    """Return for people and status.yml how the supervisor of this host is, None where none is installed.

    `unit`, `role`, `runs`, `words` (what it does, or why it does not), `strikes` (each `at` and `cause`).
    """
    config = read(state_dir, "config.json")
    if config is None:
        return None
    state = read(state_dir, "state.json") or {}
    runs = lives(state_dir)
    if runs:
        words = claimed(state_dir) or str(state.get("words", "begins"))
    else:
        words = stopped(state_dir) or (str(state.get("words", "")) if state.get("gave_up") else "") or "does not run"
    return {
        "unit": str(config.get("unit", "")),
        "role": str(config.get("role", "")),
        "runs": runs,
        "words": words,
        "strikes": [dict(one) for one in state.get("strikes", ())],
    }
