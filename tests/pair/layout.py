# SPDX-License-Identifier: Apache-2.0
"""What the virtual machines are called and how they are cabled. Pure.

Two machines have one cable, from the first port of the head to the second port of the worker, so that no port has the
same name at both ends. Three have three cables, each machine's first port to the second port of the next one. A cable
is two rails, as on a Spark: a port's two PCIe links each show a network port and an RDMA device of their own. All are
on one LAN besides, and each has a management port that nothing but ssh from outside comes in by.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("spark-head", "spark-worker", "spark-third")
# The port's number and whether it is the twin on the other PCIe link.
PORTS = {
    (0, 0): "enp1s0f0np0",
    (0, 1): "enP2p1s0f0np0",
    (1, 0): "enp1s0f1np1",
    (1, 1): "enP2p1s0f1np1",
}
# The guests give themselves these addresses on the LAN, the head's first.
LAN_NETWORK = "198.51.100"
MANAGEMENT, LAN = "mgmt0", "enP7s7"
RAILS = 2


@dataclass(frozen=True)
class Nic:
    """A network card: its name in the guest, its hardware address, and the wire it is on, where it is on one."""

    name: str
    mac: str
    wire: str


@dataclass(frozen=True)
class End:
    """One end of a rail: the machine's name and its port."""

    machine: str
    port: str


@dataclass(frozen=True)
class Wire:
    """A rail of a cable: two ports that hear each other. `network` is its own subnet, without the last byte."""

    name: str
    first: End
    second: End
    network: str


def wires(count: int) -> list[Wire]:
    """Return all rails between `count` machines, those of the first cable first."""
    cables = [(0, 1)] if count == 2 else [(one, (one + 1) % count) for one in range(count)]
    return [
        Wire(
            name=f"cable{number}-rail{rail}",
            first=End(NAMES[one], PORTS[0, rail]),
            second=End(NAMES[other], PORTS[1, rail]),
            network=f"192.168.{100 + RAILS * number + rail}",
        )
        for number, (one, other) in enumerate(cables)
        for rail in range(RAILS)
    ]


def address(wire: Wire, machine: str) -> str:
    """Return the address of a machine's end of a wire: the head's ends in 10, the next machine's in 11, and so on."""
    return f"{wire.network}.{10 + NAMES.index(machine)}"


def netplan(machine: str, count: int, mtu: int) -> str:
    """Return the netplan file that gives a machine its addresses, as a guide would have it written by hand."""
    lines = ["network:", "  version: 2", "  ethernets:"]
    for wire in wires(count):
        for end in (wire.first, wire.second):
            if end.machine == machine:
                lines += [f"    {end.port}:", f"      addresses: [{address(wire, machine)}/24]", f"      mtu: {mtu}"]
                lines += ["      link-local: []"]
    return "\n".join(lines) + "\n"


def lan_address(machine: str) -> str:
    """Return the address of a machine on the LAN, by which Ansible knows it."""
    return f"{LAN_NETWORK}.{10 + NAMES.index(machine)}"


def nics(machine: str, count: int) -> list[Nic]:
    """Return the network cards of a machine."""
    found = [Nic(name, mac(machine, name), "") for name in (MANAGEMENT, LAN)]
    for wire in wires(count):
        ends = [end for end in (wire.first, wire.second) if end.machine == machine]
        found += [Nic(end.port, mac(machine, end.port), wire.name) for end in ends]
    return found


def mac(machine: str, port: str) -> str:
    """Return the hardware address of a port, by which the guest names it."""
    kinds = [MANAGEMENT, LAN, *PORTS.values()]
    return f"52:54:00:5b:{NAMES.index(machine):02x}:{kinds.index(port):02x}"


def link_files() -> dict[str, str]:
    """Return the files of systemd-udev that name the ports of every machine, by file name."""
    return {
        f"10-{port}.link": "[Match]\n"
        + "".join(f"PermanentMACAddress={mac(machine, port)}\n" for machine in NAMES)
        + f"\n[Link]\nName={port}\n"
        for port in (MANAGEMENT, LAN, *PORTS.values())
    }
