# SPDX-License-Identifier: Apache-2.0
"""The process that virtual machines live under: it starts them, holds the wires between them, and takes them along.

    python -m tests.pair.keeper HOME COUNT OWNER

HOME is an empty directory for sockets and consoles, OWNER the process with which all of it ends (0: nobody). However
the keeper ends, by a signal, with its owner or killed, the kernel ends the machines with it.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.integration.site import free_ports
from tests.pair import disk, layout, qemu
from tests.pair.state import Running, State

_PR_SET_PDEATHSIG = 1
# Frames wait in here until the other machine takes them; none is ever lost on the way.
_WIRE_BYTES = 4 << 20


def lay_wires(count: int) -> dict[tuple[str, str], socket.socket]:
    """Return a socket for either end of every wire, by the machine's name and the wire's."""
    ends = {}
    for wire in layout.wires(count):
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end, side in zip((wire.first, wire.second), pair, strict=True):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WIRE_BYTES)
            ends[end.machine, wire.name] = side
    return ends


def die_with_the_keeper() -> None:
    """Run in a machine's process before QEMU: have the kernel end it when the keeper is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(home: Path, count: int) -> tuple[State, list[subprocess.Popen[bytes]]]:
    """Start all machines; returns how to reach them, and their processes."""
    disks = disk.ready()
    ends = lay_wires(count)
    machines, processes = {}, []
    (lan,) = free_ports(1)
    for name in layout.NAMES[:count]:
        own = {wire: side for (machine, wire), side in ends.items() if machine == name}
        forwards = dict(zip((22, 8888), free_ports(2), strict=True))
        wires = {wire: side.fileno() for wire, side in own.items()}
        words = qemu.command(name, count, disks, home, forwards, lan, wires)
        qemu.console(home, name).touch()
        with (home / f"{name}.qemu").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[side.fileno() for side in own.values()],
                    preexec_fn=die_with_the_keeper,
                    env={**os.environ, "TMPDIR": str(home)},
                )
            )
        machines[name] = Running(processes[-1].pid, forwards[22], forwards[8888])
    return State(str(home), os.getpid(), count, str(disks.key), machines), processes


def main() -> int:
    """Start the machines and stay until the owner is gone, a signal comes, or none of them is left."""
    home, count, owner = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ended, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    waited = [ended, *([os.pidfd_open(owner)] if owner else [])]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        state, processes = start(home, count)
        state.write()
        while True:
            ready, _, _ = select.select(waited, [], [])
            heard = os.read(ended, 64) if ended in ready else b""
            if ready != [ended] or set(heard) != {signal.SIGCHLD} or any(one.poll() is not None for one in processes):
                break
    finally:
        for one in processes:
            one.kill()
            one.wait()
        State.forget(str(home))
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
