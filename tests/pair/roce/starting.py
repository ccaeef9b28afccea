# SPDX-License-Identifier: Apache-2.0
"""Gathering ranks on two virtual machines: what they run from is brought there, and their rails are looked up there."""

from __future__ import annotations

import io
import subprocess
import tarfile

from tests.lines import Lines
from tests.pair import layout
from tests.pair.machines import Machine
from tests.pair.paths import HERE, ROOT

# Where the engine's sources and the rank's program are on a machine.
PLACE = "/tmp/roce"
PATIENCE = 120.0


def bring(machine: Machine) -> None:
    """Put the engine's exchange and the program there: a few files, no torch."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        source = ROOT / "engine" / "src"
        for path in [source / "sparkpair" / name for name in ("__init__.py", "errors.py")]:
            archive.add(path, str(path.relative_to(source)))
        for path in sorted((source / "sparkpair" / "comm").glob("*.py")):
            archive.add(path, str(path.relative_to(source)))
        archive.add(HERE / "roce" / "rank.py", "rank.py")
    machine.run(f"rm -rf {PLACE}; mkdir {PLACE} && tar x -C {PLACE}", stdin=packed.getvalue())


def rails_of(machines: dict[str, Machine], name: str) -> list[tuple[str, int]]:
    """A machine's devices on the first cable, with the index of the GID that has the port's address."""
    found = []
    for wire in layout.wires(2):
        end = next(one for one in (wire.first, wire.second) if one.machine == name)
        device = "roce" + end.port.removeprefix("en")[: -len("np0")]
        last = int(layout.address(wire, name).rsplit(".", 1)[1])
        network = [int(number) for number in wire.network.split(".")]
        mapped = f"{network[0]:02x}{network[1]:02x}:{network[2]:02x}{last:02x}"
        folder = f"/sys/class/infiniband/{device}/ports/1/gids"
        told = machines[name].run(f"grep -l '0000:0000:0000:0000:0000:ffff:{mapped}' {folder}/*").stdout.split()
        found.append((device, int(told[0].rsplit("/", 1)[1])))
    return found


def in_words(rails: list[tuple[str, int]]) -> str:
    """The rails as the command line has them."""
    return ",".join(f"{device}:{index}" for device, index in rails)


class Gathering:
    """A rank that runs on a machine, with its output line by line."""

    def __init__(
        self, machine: Machine, rank: int, rails: str, *, gathers: int, wait_s: float, port: int, before: str = ""
    ) -> None:
        self.machine = machine
        address = layout.address(layout.wires(2)[0], layout.NAMES[0])
        words = f"{rank} {address} {port} {rails} {gathers} {wait_s:g}"
        # Its process is known by the port and the rank, so that a signal meets no other one.
        self._known = f"rank.py {rank} {address} {port}"
        command = f"cd {PLACE} && PYTHONPATH={PLACE} {before} python3 rank.py {words}"
        self.process = subprocess.Popen(
            machine.ssh(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._said = Lines(self.process)

    @property
    def lines(self) -> list[str]:
        """What the rank has printed so far."""
        return self._said.all

    def wait_for(self, text: str) -> str:
        """The first line with `text`; fails when it does not come."""
        return self._said.expect(text, PATIENCE)

    def signal(self, name: str) -> None:
        """Send the rank's process a signal."""
        self.machine.run(f"pkill --signal {name} --full '^python3 {self._known}'")

    def exit_code(self) -> int:
        """Wait for the rank to end."""
        code = self.process.wait(PATIENCE)
        self._said.end(PATIENCE)
        return code

    def close(self) -> None:
        """End what still runs, there and here."""
        if self.process.poll() is None:
            self.machine.run(f"pkill --signal KILL --full '^python3 {self._known}'", check=False)
            self.process.wait(PATIENCE)
        self._said.end(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
