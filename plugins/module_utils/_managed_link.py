# SPDX-License-Identifier: Apache-2.0
"""The link's own netplan file: which ports it configures, what it says, and whose business a port is already.

Pure functions. Private to the collection, may change at any time.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._rails import PORT_NAME

FILE = "90-sparkpair-link.yaml"

# The first host of a link has this number in its networks, the next ones follow; as in NVIDIA's guide for two Sparks.
FIRST_NUMBER = 10


class NoPort(Exception):
    """No port can be configured. The text says what was looked for and what to do."""


def planned(netdevs: Iterable[Mapping[str, Any]], networks: Sequence[str], rank: int) -> list[dict[str, str]]:
    """Return the ports to configure: the first RDMA port that has a cable and its PCIe twin, one network each.

    A port has `netdev`, `address` (with its prefix length) and `network`. Raises NoPort.
    """
    rdma = [port for port in netdevs if port["devices"]]
    cabled = sorted(
        (port["name"] for port in rdma if port["up"]),
        key=lambda name: (name.startswith("enP"), name),
    )
    if not cabled:
        seen = f"without one: {', '.join(port['name'] for port in rdma)}" if rdma else "it has no RDMA port"
        raise NoPort(
            f"no RDMA port of this host has a live cable ({seen}); connect the hosts' ports, or set sparkpair_link to "
            "tcp"
        )
    first = PORT_NAME.match(cabled[0])
    halves = [
        name
        for name in cabled
        if name == cabled[0] or (first and (port := PORT_NAME.match(name)) and port["tail"] == first["tail"])
    ]
    return [
        {"netdev": name, "address": f"{network[FIRST_NUMBER + rank]}/{network.prefixlen}", "network": str(network)}
        for name, network in zip(halves, map(ipaddress.IPv4Network, networks))
    ]


def render(ports: Iterable[Mapping[str, str]], mtu: int) -> str:
    """Return the netplan file for these ports: static addresses, and nothing that waits for somebody to give others."""
    lines = ["# Written by sparkpair.serving for sparkpair_manage_link. playbooks/purge.yml removes it.", "network:"]
    lines += ["  version: 2", "  ethernets:"]
    for port in ports:
        lines += [
            f"    {port['netdev']}:",
            f"      addresses: [{port['address']}]",
            f"      mtu: {mtu}",
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            "      link-local: []",
            "      optional: true",
        ]
    return "\n".join(lines) + "\n"


def owners(files: Mapping[str, str], netdevs: Iterable[str]) -> dict[str, str]:
    """Return the file of `files` (path to text) that configures each netdev, for those that one does."""
    found = {}
    for netdev in netdevs:
        key = re.compile(rf"^\s+[\"']?{re.escape(netdev)}[\"']?\s*:", re.MULTILINE)
        for path, text in sorted(files.items()):
            if key.search(text):
                found[netdev] = path
                break
    return found


def missing(netdevs: Iterable[Mapping[str, Any]], ports: Iterable[Mapping[str, str]], mtu: int) -> list[str]:
    """Return in words what the ports do not have that they should: address and MTU."""
    there = {port["name"]: port for port in netdevs}
    wrong = []
    for port in ports:
        found = there.get(port["netdev"], {"addresses": [], "mtu": 0})
        has = [f"{each['address']}/{each['prefix']}" for each in found["addresses"]]
        if port["address"] not in has:
            wrong.append(f"{port['netdev']} should have {port['address']} and has {', '.join(has) or 'no address'}")
        if found["mtu"] != mtu:
            wrong.append(f"{port['netdev']} should have an MTU of {mtu} and has {found['mtu']}")
    return wrong
