# SPDX-License-Identifier: Apache-2.0
"""Which ports of two hosts carry their ranks' RDMA traffic: the link between them and its further rails.

A rail is a pair of RDMA devices, one on either host, that reach each other. Ranks pair their devices by list
position, so a rail counts only when both ends are known to be good: port ACTIVE, a RoCE v2 GID for the netdev's own
IPv4 address at the index of the link, and a full-size ping that may not be fragmented, both ways.

Everything here is pure. A node is what `_roce_host.look` returned, with `routes` and `probes` added by its second
look, and its `host`. Private to the collection, may change at any time.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Node = Mapping[str, Any]

ACTIVE = "ACTIVE"
# An IPv4 header and an ICMP header: what a ping of the link's MTU carries beside its payload.
PING_HEADERS_BYTES = 28
USUAL_MTU = 1500
# Port names of a Spark: PCIe prefix, then the function and port that its twin on the other PCIe link shares.
PORT_NAME = re.compile(r"(?P<prefix>en[pP].*s\d+)(?P<tail>f\d+np\d+)$")


@dataclass(frozen=True)
class Port:
    """One netdev with its first IPv4 address and its RDMA device. `gid_index` is None without a good GID."""

    netdev: str
    address: str
    prefix: int
    mtu: int
    device: str
    gid_index: int | None

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The subnet of the address."""
        return ipaddress.IPv4Network(f"{self.address}/{self.prefix}", strict=False)

    def reaches(self, other: Port) -> bool:
        """Say whether the other address is in this port's subnet and not its own."""
        return other.address != self.address and ipaddress.IPv4Address(other.address) in self.network

    def in_words(self) -> str:
        """Return the port for a message."""
        return f"{self.device} ({self.netdev}, {self.address}/{self.prefix}, MTU {self.mtu})"


@dataclass(frozen=True)
class Rail:
    """A port of the first host and the port of the second one that it reaches."""

    first: Port
    second: Port

    @property
    def payload(self) -> int:
        """The bytes of a ping that fills the smaller MTU of the two."""
        return min(self.first.mtu, self.second.mtu) - PING_HEADERS_BYTES

    @property
    def one_mtu(self) -> bool:
        """Say whether both ends have the same MTU: where not, pings may pass, and what RDMA sends does not."""
        return self.first.mtu == self.second.mtu


class NoLink(Exception):
    """Two hosts have no usable link. `at` is the host's position (0 or 1); the text says what was found."""

    def __init__(self, at: int, found: str) -> None:
        super().__init__(found)
        self.at = at


def has_rdma(node: Node) -> bool:
    """Say whether the host has any RDMA device with a netdev."""
    return any(netdev["devices"] for netdev in node["netdevs"])


def addresses(node: Node) -> list[str]:
    """Return every IPv4 address on a netdev with an RDMA device, in the order of the netdevs."""
    return [each["address"] for netdev in node["netdevs"] if netdev["devices"] for each in netdev["addresses"]]


def peer_address(node: Node, name: str) -> str:
    """Return the IPv4 address that `node` has for a peer's name or address. Raises NoLink."""
    try:
        return str(ipaddress.IPv4Address(name))
    except ValueError:
        found = [address for address in node["resolved"].get(name, ()) if not address.startswith("127.")]
        if not found:
            raise NoLink(0, f"cannot resolve {name} to an IPv4 address that others have") from None
        return str(found[0])


def link(nodes: tuple[Node, Node], peer: str, own: str, explicit: bool) -> tuple[Rail, str]:
    """Return the link of two hosts, and a sentence when it is another one than `peer` leads to.

    `peer` is the second host's name or address as it was set, `own` the first host's address where one was set;
    `explicit` says that `peer` is meant for the fabric, so that nothing else is looked for. Raises NoLink.
    """
    first, second = nodes
    address = peer_address(first, peer)
    note = ""
    route = _route(first, address)
    if not _rdma_netdev(first, route["netdev"]) and not explicit:
        other = _direct_address(nodes)
        if other:
            note = f"{address} is reached over {route['netdev']}, not an RDMA port; the link uses {other} instead"
            address, route = other, _route(first, other)
    netdev = _netdev_with(first, own) if own and own != address else None
    if netdev is None or not netdev["devices"] or not netdev["up"]:
        netdev = _netdev(first, route["netdev"])
        own = route["source"]
    near = _port(first, netdev, own, 0)
    back = _netdev_with(second, address)
    if back is None:
        raise NoLink(1, f"{address} is no address of this host")
    # Where the second host was asked for its way back, that is the port it answers from.
    returned = second["routes"].get(near.address)
    if returned is not None:
        if returned.get("error"):
            raise NoLink(1, f"there is no route back to {near.address}: {returned['error']}")
        if not explicit and not any(each["address"] == returned["source"] for each in back["addresses"]):
            candidate = _netdev(second, returned["netdev"])
            if candidate["devices"]:
                back, address = candidate, returned["source"]
    return Rail(near, _port(second, back, address, 1)), note


def candidates(nodes: tuple[Node, Node], main: Rail) -> list[Rail]:
    """Return every further rail that could be, the likeliest first: twins of the link, then ports of its subnet.

    A port may stand in several; `choose` takes each once.
    """
    ends = [
        [port for port in _extra_ports(node, end) if port.gid_index == end.gid_index]
        for node, end in zip(nodes, (main.first, main.second))
    ]
    found = [Rail(a, b) for a in ends[0] for b in ends[1] if a.reaches(b) and b.reaches(a)]
    # The twin of the one end belongs to the twin of the other: both are the second half of the same cable.
    order = {(True, True): 0, (False, False): 1}
    return sorted(
        found, key=lambda rail: order.get((_twins(main.first, rail.first), _twins(main.second, rail.second)), 2)
    )


def probes(rails: Sequence[Rail], end: int) -> list[dict[str, Any]]:
    """Return the pings that one end (0 or 1) of the rails has to send: `netdev`, `address` and `size` in bytes."""
    result = []
    for rail in rails:
        near, far = (rail.first, rail.second) if end == 0 else (rail.second, rail.first)
        result.append({"netdev": near.netdev, "address": far.address, "size": rail.payload})
    return result


def answered(nodes: tuple[Node, Node], rail: Rail) -> list[bool]:
    """Return for either direction whether the full-size ping came back; a ping that was not sent did not."""
    result = []
    for end, node in enumerate(nodes):
        (wanted,) = probes([rail], end)
        result.append({**wanted, "answered": True} in node["probes"])
    return result


def choose(nodes: tuple[Node, Node], main: Rail, one_only: bool) -> tuple[list[Rail], str]:
    """Return the rails to use, the link first, each device once and in the same order on both hosts.

    With `one_only` no further rail is looked at. The text says which ports are left out although they are there,
    and why; it is empty when none is.
    """
    if one_only:
        return [main], ""
    rails = [main]
    for rail in candidates(nodes, main):
        taken = any(rail.first.netdev == one.first.netdev or rail.second.netdev == one.second.netdev for one in rails)
        if not taken and rail.one_mtu and all(answered(nodes, rail)):
            rails.append(rail)
    return rails, "; ".join(_left_out(nodes, main, rails))


def _left_out(nodes: tuple[Node, Node], main: Rail, rails: Sequence[Rail]) -> Iterator[str]:
    """Say of every port that could have been a rail why it is none."""
    done = ({rail.first.netdev for rail in rails}, {rail.second.netdev for rail in rails})
    for rail in candidates(nodes, main):
        if rail.first.netdev in done[0] or rail.second.netdev in done[1]:
            continue
        done[0].add(rail.first.netdev)
        done[1].add(rail.second.netdev)
        ends = f"{rail.first.in_words()} of {nodes[0]['host']} and {rail.second.in_words()} of {nodes[1]['host']}"
        if not rail.one_mtu:
            yield f"{ends} have different MTUs"
            continue
        there, back = answered(nodes, rail)
        lost = "both ways" if not there and not back else "on the way back" if there else "on the way there"
        yield (
            f"{ends} do not reach each other: a ping of {rail.payload} bytes that may not be fragmented was lost {lost}"
        )
    for node, end, known in zip(nodes, (main.first, main.second), done):
        for netdev in _others_up(node, end):
            if netdev["name"] not in known:
                yield f"{_device_of(netdev)} ({netdev['name']}) of {node['host']} {_why_not(node, netdev, end)}"


def _why_not(node: Node, netdev: Mapping[str, Any], end: Port) -> str:
    if not netdev["addresses"]:
        return "is up and has no IPv4 address"
    if node["devices"][_device_of(netdev)]["state"] != ACTIVE:
        return f"has a port that is {node['devices'][_device_of(netdev)]['state']}, not {ACTIVE}"
    index = gid_index(node, _device_of(netdev), netdev["addresses"][0]["address"])
    if index is None:
        return f"has no RoCE v2 GID for {netdev['addresses'][0]['address']}"
    if index != end.gid_index:
        return f"has its RoCE v2 GID at index {index}, the link has it at {end.gid_index}, and NCCL takes one for all"
    return f"with {netdev['addresses'][0]['address']} has no partner in its subnet"


def gid_index(node: Node, device: str, address: str) -> int | None:
    """Return the index of the device's GID that is the IPv4-mapped `address` and of type RoCE v2, else None."""
    wanted = ipaddress.IPv4Address(address)
    for gid in node["devices"].get(device, {"gids": ()})["gids"]:
        if "v2" in gid["type"].lower() and ipaddress.IPv6Address(gid["gid"]).ipv4_mapped == wanted:
            return int(gid["index"])
    return None


def _explain_gids(node: Node, device: str, address: str) -> str:
    """Return what the device's table has instead of a RoCE v2 GID for the address."""
    gids = node["devices"][device]["gids"]
    if not gids:
        return "its table is empty or all zero"
    mapped = [gid for gid in gids if ipaddress.IPv6Address(gid["gid"]).ipv4_mapped == ipaddress.IPv4Address(address)]
    if mapped:
        return f"the address is at index {mapped[0]['index']} only with type {mapped[0]['type']}"
    v2 = [gid for gid in gids if "v2" in gid["type"].lower()]
    if v2:
        return "RoCE v2 is there only for " + ", ".join(f"{gid['gid']} (index {gid['index']})" for gid in v2)
    return "it has no RoCE v2 entry at all"


def _port(node: Node, netdev: Mapping[str, Any], address: str, at: int) -> Port:
    """Return the port at one end of the link, which must be usable. Raises NoLink."""
    if not netdev["devices"]:
        raise NoLink(at, f"the link would leave through {netdev['name']} ({address}), which has no RDMA device")
    if not netdev["up"]:
        raise NoLink(at, f"{netdev['name']} ({address}) is down")
    device = _device_of(netdev)
    state = node["devices"][device]["state"]
    if state != ACTIVE:
        raise NoLink(at, f"the RDMA port of {device} ({netdev['name']}) is {state}, not {ACTIVE}")
    index = gid_index(node, device, address)
    if index is None:
        why = _explain_gids(node, device, address)
        raise NoLink(at, f"{device} ({netdev['name']}) has no RoCE v2 GID for {address}: {why}")
    return _as_port(netdev, address, device, index)


def _as_port(netdev: Mapping[str, Any], address: str, device: str, index: int | None) -> Port:
    prefix = next(each["prefix"] for each in netdev["addresses"] if each["address"] == address)
    return Port(netdev["name"], address, prefix, netdev["mtu"] or USUAL_MTU, device, index)


def _extra_ports(node: Node, end: Port) -> list[Port]:
    """Return the ports that may be further rails, without regard to their GID's index."""
    ports = []
    for netdev in _others_up(node, end):
        device = _device_of(netdev)
        if netdev["addresses"] and node["devices"][device]["state"] == ACTIVE:
            address = netdev["addresses"][0]["address"]
            ports.append(_as_port(netdev, address, device, gid_index(node, device, address)))
    return ports


def _others_up(node: Node, end: Port) -> list[Mapping[str, Any]]:
    """Return the RDMA netdevs beside the link's own that are up: its twin, and both of a second cabled port."""
    return [netdev for netdev in node["netdevs"] if netdev["name"] != end.netdev and netdev["devices"] and netdev["up"]]


def _twins(end: Port, port: Port) -> bool:
    """Say whether two netdevs are the halves of one physical port: the same tail behind another PCIe prefix."""
    one, other = PORT_NAME.match(end.netdev), PORT_NAME.match(port.netdev)
    return bool(one and other and one["tail"] == other["tail"] and one["prefix"] != other["prefix"])


def _direct_address(nodes: tuple[Node, Node]) -> str:
    """Return the second host's first RDMA address that the first one reaches over an RDMA port without a gateway."""
    first, second = nodes
    for netdev in second["netdevs"]:
        for each in netdev["addresses"] if netdev["devices"] and netdev["up"] else ():
            route = first["routes"].get(each["address"]) or _local_route(first, each["address"])
            if not route.get("error") and not route.get("gateway") and _rdma_netdev(first, route["netdev"]):
                return str(each["address"])
    return ""


def _route(node: Node, address: str) -> Mapping[str, Any]:
    """Return the route to an address, as the kernel said or, before it was asked, as the subnets say. Raises NoLink."""
    route = node["routes"].get(address) or _local_route(node, address)
    if route.get("error"):
        raise NoLink(0, f"there is no route to {address}: {route['error']}")
    return route


def _local_route(node: Node, address: str) -> Mapping[str, Any]:
    for netdev in node["netdevs"]:
        for each in netdev["addresses"] if netdev["up"] else ():
            subnet = ipaddress.IPv4Network(f"{each['address']}/{each['prefix']}", strict=False)
            if ipaddress.IPv4Address(address) in subnet and each["address"] != address:
                return {"netdev": netdev["name"], "source": each["address"], "gateway": ""}
    return {"error": "no subnet of this host has it"}


def _rdma_netdev(node: Node, name: str) -> bool:
    return any(netdev["name"] == name and netdev["devices"] for netdev in node["netdevs"])


def _netdev(node: Node, name: str) -> Mapping[str, Any]:
    unknown = {"name": name, "devices": [], "addresses": [], "up": False}
    return next((each for each in node["netdevs"] if each["name"] == name), unknown)


def _netdev_with(node: Node, address: str) -> Mapping[str, Any] | None:
    return next((dev for dev in node["netdevs"] if any(a["address"] == address for a in dev["addresses"])), None)


def _device_of(netdev: Mapping[str, Any]) -> str:
    return str(netdev["devices"][0])
