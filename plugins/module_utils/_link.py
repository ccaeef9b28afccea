# SPDX-License-Identifier: Apache-2.0
"""The one place that decides by which address ranks, and people, reach each other.

Pure. Every other part takes its addresses from here: the rendezvous, the socket interface, the NFS server, what
clients are told. Which ports two hosts share is found in `_rails.py`. Private to the collection, may change at any
time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _rails
from ansible_collections.sparkpair.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.sparkpair.serving.plugins.module_utils._plan import is_loopback

AUTO, LOOPBACK, TCP, ROCE = "auto", "loopback", "tcp", "roce"

Nodes = Mapping[str, _rails.Node]


@dataclass
class Pairing:
    """The rails of two hosts, what is said about them, and what speaks against them."""

    hosts: tuple[str, str]
    rails: list[_rails.Rail] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def mode(plan: Mapping[str, Any], setting: str) -> str:
    """Return how the link is found: `loopback`, `tcp`, `roce`, or `auto`, which needs a look at the hosts.

    `setting` is sparkpair_link.
    """
    return LOOPBACK if setting == AUTO and plan["one_machine"] else setting


def wants_rdma(mode_: str, uses_rdma: bool, nodes: Nodes) -> bool:
    """Say whether the link must be RoCE: asked for, or possible, for then TCP would be a silent loss of speed.

    `uses_rdma` says whether the engine can.
    """
    return mode_ == ROCE or (mode_ == AUTO and uses_rdma and any(_rails.has_rdma(node) for node in nodes.values()))


def plain(plan: Mapping[str, Any], api_host: str, nodes: Nodes | None = None) -> dict[str, Any]:
    """Return a link of plain TCP, over the addresses of the plan or, where it has none, those the names lead to.

    `api_host` is the head's bind address. The result has `transport`, `rdma`, `rendezvous` (the head's address for
    the other ranks), `advertised` (the head's address for clients), `nodes` and `note`, a sentence for people. A node
    has `address`, `head_address` (the head's for this host, on the cable between them) and, as far as they are known,
    `netdev`, `socket_netdev`, `devices` (its rails, the link first), `gid_index` and `mtu`.
    """
    hosts = [entry["host"] for entry in plan["ranks"]]
    found = {entry["host"]: entry["address"] or _named(entry, hosts, nodes or {}) for entry in plan["ranks"]}
    if plan["one_machine"]:
        note = f"loopback: all {plan['world_size']} ranks are on one machine and talk plain TCP, without RDMA"
    else:
        note = f"plain TCP, without RDMA: {', '.join(f'{host} {address}' for host, address in found.items())}"
    result = {host: _node(address, found[hosts[0]]) for host, address in found.items()}
    return _link(plan, api_host, TCP, result, found[hosts[0]], note)


def nameless(link: Mapping[str, Any]) -> list[Finding]:
    """Return an error for every host of a plain link whose address could not be found."""
    return [
        Finding(
            id="link",
            severity=ERROR,
            host=host,
            found="no other host can resolve its name to an IPv4 address that is not loopback",
            wanted="the address by which the other ranks reach it",
            remedy="set sparkpair_fabric_address of this host",
        )
        for host, node in link["nodes"].items()
        if not node["address"]
    ]


def pairings(plan: Mapping[str, Any], nodes: Nodes, explicit: Mapping[str, bool], one_rail: bool) -> list[Pairing]:
    """Return the rails of every two hosts, the head's pairs first.

    `explicit` says by host whether its address was set for the fabric; `one_rail` keeps to the link itself. Before
    the second look at the hosts no rail but the first is proved; what `wanted` names has then to be asked for.
    """
    return [_pair(plan, nodes, hosts, explicit, one_rail) for hosts in combinations(nodes, 2)]


def wanted(found: Sequence[Pairing], nodes: Nodes, host: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return what `host` has to be asked in the second look: addresses for routes, and pings."""
    routes: list[str] = []
    pings: list[dict[str, Any]] = []
    for pairing in found:
        if host not in pairing.hosts:
            continue
        end = pairing.hosts.index(host)
        other = pairing.hosts[1 - end]
        routes += _rails.addresses(nodes[other])
        if pairing.rails:
            both = (nodes[pairing.hosts[0]], nodes[pairing.hosts[1]])
            main = pairing.rails[0]
            pings += _rails.probes([main, *_rails.candidates(both, main)], end)
    return list(dict.fromkeys(routes)), [ping for index, ping in enumerate(pings) if ping not in pings[:index]]


def measured(plan: Mapping[str, Any], api_host: str, nodes: Nodes, found: Sequence[Pairing]) -> dict[str, Any]:
    """Return a RoCE link over pairings without errors; the keys are those of `plain`.

    Two hosts use their own cable for everything. More hosts have no subnet in common for sure, so that the head's
    ordinary address is where they meet, and every device toward any other host is used.
    """
    hosts = list(nodes)
    head = hosts[0]
    toward = {pairing.hosts[1]: pairing.rails[0].first.address for pairing in found if pairing.hosts[0] == head}
    result = {}
    for host in hosts:
        ports = _ports_of(host, found)
        indexes = {port.gid_index for port in ports}
        result[host] = {
            **_node(ports[0].address, toward.get(host, ports[0].address)),
            "netdev": ports[0].netdev,
            "socket_netdev": ports[0].netdev if len(hosts) == 2 else nodes[host]["default"]["netdev"],
            "devices": [port.device for port in ports],
            "gid_index": indexes.pop() if len(indexes) == 1 else None,
            "mtu": min(port.mtu for port in ports),
        }
    meet = result[head]["address"] if len(hosts) == 2 else nodes[head]["default"]["source"]
    told = [
        f"{host} {node['address']} on {node['netdev']} ({', '.join(node['devices'])}, GID index {node['gid_index']})"
        for host, node in result.items()
    ]
    rails = min(len(pairing.rails) for pairing in found)
    note = f"RoCE, {rails} {'rail' if rails == 1 else 'rails'}: {'; '.join(told)}"
    note += "".join(f"; {text}" for pairing in found for text in pairing.notes)
    return _link(plan, api_host, ROCE, result, meet, note)


def _pair(
    plan: Mapping[str, Any], nodes: Nodes, hosts: tuple[str, str], explicit: Mapping[str, bool], one_rail: bool
) -> Pairing:
    result = Pairing(hosts)
    first, second = (next(entry for entry in plan["ranks"] if entry["host"] == host) for host in hosts)
    both = (nodes[hosts[0]], nodes[hosts[1]])
    own = first["address"] if explicit[hosts[0]] else ""
    peer = second["address"] or second["connection"]
    try:
        main, note = _rails.link(both, peer, own, explicit[hosts[1]])
    except _rails.NoLink as error:
        result.findings.append(_no_link(hosts, error))
        return result
    result.notes += [note] if note else []
    result.rails = [main]
    if not all("probes" in node for node in both):
        return result
    result.findings += _mtu(hosts, main)
    if not result.findings and not all(_rails.answered(both, main)):
        result.findings.append(_unanswered(hosts, main))
    result.rails, left_out = _rails.choose(both, main, one_rail)
    if left_out:
        result.findings.append(
            Finding(
                id="rail",
                severity=WARNING,
                host=hosts[0],
                found=f"{len(result.rails)} of the ports toward {hosts[1]} can be used: {left_out}",
                wanted="every cabled port addressed, in a subnet and with an MTU that both ends share",
                remedy="put it right for full speed, or set sparkpair_rails to 1 if one is meant",
            )
        )
    return result


def _no_link(hosts: tuple[str, str], error: _rails.NoLink) -> Finding:
    at, other = hosts[error.at], hosts[1 - error.at]
    return Finding(
        id="link",
        severity=ERROR,
        host=at,
        found=f"no RoCE link to {other}: {error}",
        wanted="an ACTIVE port with an IPv4 address, a RoCE v2 GID for it, and a route between the two hosts",
        remedy=f"set sparkpair_fabric_address of {at} and {other} to their addresses on the cable; sparkpair_link: tcp "
        "does without RDMA",
    )


def _mtu(hosts: tuple[str, str], main: _rails.Rail) -> list[Finding]:
    if main.first.mtu == main.second.mtu:
        return []
    ends = ((hosts[0], main.first), (hosts[1], main.second))
    told = ", ".join(f"{port.mtu} on {port.netdev} of {host}" for host, port in ends)
    return [
        Finding(
            id="mtu",
            severity=ERROR,
            host=hosts[1],
            found=f"the MTUs of the link differ: {told}",
            wanted="the same MTU at both ends",
            remedy="set both ends to the same MTU while no rank runs",
        )
    ]


def _unanswered(hosts: tuple[str, str], main: _rails.Rail) -> Finding:
    return Finding(
        id="link",
        severity=ERROR,
        host=hosts[0],
        found=f"a ping of {main.payload} bytes that may not be fragmented is lost between {main.first.in_words()} of "
        f"{hosts[0]} and {main.second.in_words()} of {hosts[1]}",
        wanted="a link that carries its whole MTU both ways",
        remedy="check cable, switch and firewall, or set both ends to an MTU that passes",
    )


def _ports_of(host: str, found: Sequence[Pairing]) -> list[_rails.Port]:
    """Return the ports of a host toward all others, each once."""
    ports = [
        rail.first if pairing.hosts[0] == host else rail.second
        for pairing in found
        if host in pairing.hosts
        for rail in pairing.rails
    ]
    return list({port.netdev: port for port in ports}.values())


def _link(
    plan: Mapping[str, Any], api_host: str, transport: str, nodes: dict[str, Any], meet: str, note: str
) -> dict[str, Any]:
    return {
        "transport": transport,
        "rdma": transport == ROCE,
        "rendezvous": meet,
        "advertised": _advertised(api_host, plan["ranks"][0]["connection"], nodes[plan["ranks"][0]["host"]]["address"]),
        "nodes": nodes,
        "note": note,
    }


def _node(address: str, head_address: str) -> dict[str, Any]:
    known = {"address": address, "head_address": head_address}
    return {**known, "netdev": "", "socket_netdev": "", "devices": [], "gid_index": None, "mtu": None}


def _named(entry: Mapping[str, Any], hosts: Sequence[str], nodes: Nodes) -> str:
    """Return the address that another host has for a host that is known by name only; its own would be loopback."""
    for host in hosts:
        found = nodes[host]["resolved"].get(entry["connection"], ()) if host in nodes else ()
        usable = [address for address in found if not is_loopback(address)]
        if host != entry["host"] and usable:
            return str(usable[0])
    return ""


def _advertised(api_host: str, connection: str, link: str) -> str:
    """Return the head's address for clients: where it listens, or for a wildcard where the controller
    reaches it.

    The link comes last: it is a private cable between the machines.
    """
    if api_host != "0.0.0.0":
        return api_host
    try:
        address = str(ipaddress.IPv4Address(connection))
    except ValueError:
        return link
    return link if is_loopback(address) else address
