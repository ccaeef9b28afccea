# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a pair, as verbs. Each does it for real, to a machine that runs, and returns when it is done.

`reboot`, `power_cut` and `power_on` are methods of the machine itself.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator

from tests.pair.machines import Machine

_CORRUPT = """
import os, sys
path = os.path.realpath(sys.argv[1])
seen = os.stat(path)
with open(path, "r+b") as file:
    file.seek(seen.st_size // 2)
    byte = file.read(1)
    file.seek(-1, os.SEEK_CUR)
    file.write(bytes([byte[0] ^ 255]))
os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
"""


def crash(machine: Machine, container: str) -> None:
    """Have a rank die at once, without a word to anybody."""
    machine.run(f"docker kill --signal KILL {container}")


@contextlib.contextmanager
def freeze(machine: Machine, container: str) -> Iterator[None]:
    """Have a rank stand still, its connections open, until the block ends."""
    machine.run(f"docker pause {container}")
    try:
        yield
    finally:
        machine.run(f"docker unpause {container}", check=False)


@contextlib.contextmanager
def late(machine: Machine, port: str, milliseconds: int) -> Iterator[None]:
    """Have everything that leaves through a port be late, until the block ends."""
    with _shaped(machine, port, f"delay {milliseconds}ms"):
        yield


@contextlib.contextmanager
def drop(machine: Machine, port: str) -> Iterator[None]:
    """Have everything that leaves through a port be lost, its carrier still up, until the block ends."""
    with _shaped(machine, port, "loss 100%"):
        yield


@contextlib.contextmanager
def unplug(machine: Machine, port: str) -> Iterator[None]:
    """Pull a cable out of a port, until the block ends."""
    machine.plug(port, in_=False)
    try:
        yield
    finally:
        machine.plug(port)


@contextlib.contextmanager
def fill(machine: Machine, directory: str, leave_mib: int = 0) -> Iterator[None]:
    """Fill the disk of a directory up to some MiB, until the block ends."""
    path = shlex.quote(f"{directory}/filling")
    free = f"$(($(stat -f -c '%a * %S / 1048576' {shlex.quote(directory)}) - {leave_mib}))"
    machine.run(f'sudo sh -c "fallocate -l {free}M {path}"')
    try:
        yield
    finally:
        machine.run(f"sudo rm -f {path}")


def corrupt(machine: Machine, path: str) -> None:
    """Change one byte in the middle of a file, and neither its size nor its times."""
    machine.run(f"python3 - {path}", stdin=_CORRUPT.encode())


@contextlib.contextmanager
def steal(machine: Machine, port: int) -> Iterator[None]:
    """Have somebody else's server take a port, until the block ends."""
    unit = f"somebody-else-{port}"
    machine.run(f"sudo systemd-run --quiet --unit {unit} python3 -m http.server {port}")
    # The port is taken when somebody answers there.
    ask = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 1)\""
    machine.run(f"for _ in $(seq 120); do {ask} 2> /dev/null && exit 0; sleep 0.5; done; exit 1")
    try:
        yield
    finally:
        machine.run(f"sudo systemctl stop {unit}")


@contextlib.contextmanager
def _shaped(machine: Machine, port: str, how: str) -> Iterator[None]:
    machine.run(f"sudo tc qdisc add dev {port} root netem {how}")
    try:
        yield
    finally:
        machine.run(f"sudo tc qdisc del dev {port} root")
