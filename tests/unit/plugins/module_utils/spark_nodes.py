# SPDX-License-Identifier: Apache-2.0
"""Hosts with RDMA ports for the tests: small trees shaped like /sys, and nodes as the second look leaves them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

V1, V2 = "IB/RoCE v1", "RoCE v2"


def mapped(address: str) -> str:
    """The text of the IPv4-mapped GID of an address, as the kernel writes it."""
    return ipaddress.IPv6Address(f"::ffff:{address}").exploded


def device_of(netdev: str) -> str:
    """The RDMA device of a Spark's netdev: rocep1s0f0 for enp1s0f0np0."""
    return "roce" + netdev[2 : netdev.rindex("np")]


@dataclass
class Port:
    """A port of a host. `gids` is its table by index; by default link-local ones, then the address's, v2 at index 3."""

    netdev: str
    address: str = ""
    prefix: int = 24
    mtu: int = 9000
    up: bool = True
    state: str = "4: ACTIVE"
    gids: dict[int, tuple[str, str]] | None = None
    # A device in software has no card, so that only its GIDs tell whose port it is.
    soft: bool = False

    def table(self) -> dict[int, tuple[str, str]]:
        """The GID table; link-local v1 and v2 entries come first on every real port."""
        local = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
        own = {2: (mapped(self.address), V1), 3: (mapped(self.address), V2)} if self.address else {}
        return self.gids if self.gids is not None else {0: (local, V1), 1: (local, V2), **own}


def write_sysfs(root: Path, ports: Sequence[Port]) -> Path:
    """Write what /sys has of the ports: eight GID entries each, the empty ones all zero and without a type."""
    for port in ports:
        device = device_of(port.netdev)
        if not port.soft:
            (root / "class" / "net" / port.netdev / "device" / "infiniband" / device).mkdir(parents=True)
            (root / "class" / "net" / port.netdev / "speed").write_text("200000\n")
        place = root / "class" / "infiniband" / device / "ports" / "1"
        (place / "gids").mkdir(parents=True)
        for attribute in ("types", "ndevs"):
            (place / "gid_attrs" / attribute).mkdir(parents=True)
        (place / "state").write_text(f"{port.state}\n")
        (place.parent.parent / "fw_ver").write_text("28.45.4028\n")
        for index in range(8):
            gid, kind = port.table().get(index, (":".join(["0000"] * 8), ""))
            (place / "gids" / str(index)).write_text(f"{gid}\n")
            if kind:
                (place / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
                (place / "gid_attrs" / "ndevs" / str(index)).write_text(f"{port.netdev}\n")
    return root


def node(host: str, *ports: Port, lan: str = "", resolved: dict[str, list[str]] | None = None) -> dict[str, Any]:
    """A host as the first look finds it: its ports, and a LAN port with the default route where `lan` is given."""
    netdevs = [
        {
            "name": port.netdev,
            "up": port.up,
            "mtu": port.mtu,
            "addresses": [{"address": port.address, "prefix": port.prefix}] if port.address else [],
            "devices": [device_of(port.netdev)],
        }
        for port in ports
    ]
    if lan:
        address = [{"address": lan, "prefix": 24}]
        netdevs.insert(0, {"name": "enP7s7", "up": True, "mtu": 1500, "addresses": address, "devices": []})
    devices = {
        device_of(port.netdev): {
            "state": port.state.split()[-1],
            "firmware": "28.45.4028",
            "gids": [{"index": at, "gid": gid, "type": kind} for at, (gid, kind) in sorted(port.table().items())],
        }
        for port in ports
    }
    default = {"netdev": "enP7s7" if lan else "", "source": lan}
    return {
        "host": host,
        "netdevs": netdevs,
        "devices": devices,
        "default": default,
        "resolved": resolved or {},
        "routes": {},
    }
