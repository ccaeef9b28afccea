# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine: telling one from a later one with the same id, waiting for them, their memory.

A process id is reused; the id together with its start time and the boot it belongs to is not. Nothing here
signals a process before that identity was checked on a descriptor which then stays with the checked process.
Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import time

from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import (
    boot_id,
    start_ticks,
    stat_fields,
)


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """One process of one boot.

    `start_ticks` counts clock ticks from that boot to the start of the process.
    """

    pid: int
    start_ticks: int
    boot_id: str

    def runs(self) -> bool:
        """Say whether this very process still runs: one that waits to be reaped does not."""
        try:
            return (
                boot_id() == self.boot_id
                and stat_fields(self.pid)[0] not in ("Z", "X")
                and start_ticks(self.pid) == self.start_ticks
            )
        except OSError:
            return False

    def uptime_s(self) -> float:
        """Return for how many seconds the process has existed."""
        with open("/proc/uptime", encoding="ascii") as file:
            since_boot = float(file.read().split()[0])
        return max(0.0, since_boot - self.start_ticks / os.sysconf("SC_CLK_TCK"))


class ProcessHandle:
    """A checked process: what is sent reaches it or nothing. Use as a context manager.

    Kernels before 5.3 have no process descriptors; there the identity is checked again before every signal
    and the end is looked for ten times a second.
    """

    def __init__(self, identity: ProcessIdentity, descriptor: int | None) -> None:
        self.identity = identity
        self.descriptor = descriptor

    @classmethod
    def of(cls, identity: ProcessIdentity) -> ProcessHandle | None:
        """Return a handle of the process, or None when it does not run (any more)."""
        descriptor = None
        # Python 3.9 has os.pidfd_open, the kernel below it perhaps not.
        with contextlib.suppress(AttributeError, OSError):
            descriptor = os.pidfd_open(identity.pid)
        if identity.runs():
            return cls(identity, descriptor)
        if descriptor is not None:
            os.close(descriptor)
        return None

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def send(self, number: int) -> None:
        """Signal this process alone; nothing happens when it has ended. Raises PermissionError."""
        with contextlib.suppress(ProcessLookupError):
            if self.descriptor is not None:
                signal.pidfd_send_signal(self.descriptor, number)
            elif self.identity.runs():
                os.kill(self.identity.pid, number)

    def send_to_group(self, number: int) -> None:
        """Signal the process group that this process leads, if it runs. Raises PermissionError."""
        if self.identity.runs():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.identity.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended. Returns False when it still runs after `timeout_s` seconds."""
        if self.descriptor is not None:
            poller = select.poll()
            poller.register(self.descriptor, select.POLLIN)
            return bool(poller.poll(max(0.0, timeout_s) * 1000))
        deadline = time.monotonic() + timeout_s
        while self.identity.runs():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        return True


def group_rss_bytes(leader: int) -> int:
    """Return the resident memory of a process group in bytes; pages that its processes share count for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            fields = stat_fields(int(entry))
            if int(fields[2]) == leader:
                total += int(fields[21]) * page
    return total


def tree(root: int) -> dict[int, int]:
    """Return the resident memory in bytes of a process and its descendants, each by its id; shared pages count for
    each.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    children: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            fields = stat_fields(int(entry))
            children.setdefault(int(fields[1]), []).append(int(entry))
            sizes[int(entry)] = int(fields[21]) * page
    found, waiting = {}, [root]
    while waiting:
        one = waiting.pop()
        found[one] = sizes.get(one, 0)
        waiting += children.get(one, [])
    return found


def mem_available_bytes() -> int:
    """Return the memory that could be given to a process without swapping, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no line MemAvailable: a Linux kernel of 3.14 or later is needed")


def holders_of(path: str) -> list[int]:
    """Return the ids of this user's processes that have the file `path` open, without the calling one."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            wanted = os.stat(path)
            for name in os.listdir(f"/proc/{entry}/fd"):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{entry}/fd/{name}"), wanted):
                        found.append(int(entry))
                        break
    return sorted(found)
