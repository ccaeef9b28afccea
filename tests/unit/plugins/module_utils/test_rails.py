# SPDX-License-Identifier: Apache-2.0
"""Which ports two hosts talk RDMA over, against everything that was ever found wrong with them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _link, _rails, _roce_host

from tests.unit.plugins.module_utils.settings_files import effective, plan_of
from tests.unit.plugins.module_utils.spark_nodes import V1, V2, Port, mapped, node, write_sysfs

HEAD, WORKER = "a", "b"
LOCAL = "fe80:0000:0000:0000:0000:00ff:fe00:0001"


def two(head: list[Port], worker: list[Port], **more: Any) -> dict[str, dict[str, Any]]:
    """Two hosts with a LAN and these RDMA ports, before any ping."""
    return {
        HEAD: node(HEAD, *head, lan="198.51.100.1", **more),
        WORKER: node(WORKER, *worker, lan="198.51.100.2"),
    }


def plan(*addresses: str, connections: tuple[str, ...] = ("198.51.100.1", "198.51.100.2", "198.51.100.3")) -> dict:
    """The plan of hosts whose fabric addresses were set, or not."""
    settings = effective(*"abc"[: len(addresses)], link="auto")
    result = copy.deepcopy(plan_of(settings))
    for entry, address, connection in zip(result["ranks"], addresses, connections, strict=False):
        entry.update(address=address or connection, connection=connection)
        if not connection[0].isdigit() and not address:
            entry["address"] = ""
    return result


def explicit(found: dict[str, Any]) -> dict[str, bool]:
    return {
        entry["host"]: bool(entry["address"]) and entry["address"] != entry["connection"] for entry in found["ranks"]
    }


def proved(
    nodes: dict[str, dict[str, Any]], found: dict[str, Any], lost: tuple[tuple[str, str], ...] = ()
) -> list[_link.Pairing]:
    """The pairings after a second look in which all pings arrive but those from the named (host, netdev)."""
    first = _link.pairings(found, nodes, explicit(found), one_rail=False)
    for host, each in nodes.items():
        _, pings = _link.wanted(first, nodes, host)
        each["probes"] = [{**ping, "answered": (host, ping["netdev"]) not in lost} for ping in pings]
    return _link.pairings(found, nodes, explicit(found), one_rail=False)


def devices(pairing: _link.Pairing) -> list[tuple[str, str]]:
    return [(rail.first.device, rail.second.device) for rail in pairing.rails]


FABRIC = ("192.0.2.1", "192.0.2.2")
ONE = [Port("enp1s0f0np0", "192.0.2.1")], [Port("enp1s0f0np0", "192.0.2.2")]


def test_n01_a_twin_without_an_address_gives_one_rail_and_one_warning() -> None:
    nodes = two(
        [Port("enp1s0f1np1", "192.0.2.1"), Port("enP2p1s0f1np1", "", gids={3: (LOCAL, V2)})],
        [Port("enp1s0f1np1", "192.0.2.2"), Port("enP2p1s0f1np1", "", gids={3: (LOCAL, V2)})],
    )
    (pairing,) = proved(nodes, plan(*FABRIC))
    assert devices(pairing) == [("rocep1s0f1", "rocep1s0f1")]
    (warning,) = pairing.findings
    assert warning.severity == "warning"
    assert "roceP2p1s0f1 (enP2p1s0f1np1) of a is up and has no IPv4 address" in warning.found


@pytest.mark.parametrize("lost", [(HEAD, "enP2p1s0f0np0"), (WORKER, "enP2p1s0f0np0")])
def test_n01_a_twin_that_answers_in_one_direction_only_is_dropped_on_both_hosts(lost: tuple[str, str]) -> None:
    nodes = two(
        [*ONE[0], Port("enP2p1s0f0np0", "203.0.113.1", mtu=9000)],
        [*ONE[1], Port("enP2p1s0f0np0", "203.0.113.2", mtu=9000)],
    )
    (pairing,) = proved(nodes, plan(*FABRIC), lost=(lost,))
    assert devices(pairing) == [("rocep1s0f0", "rocep1s0f0")]
    (warning,) = pairing.findings
    assert "a ping of 8972 bytes that may not be fragmented was lost on the way" in warning.found
    for told in ("203.0.113.1/24, MTU 9000", "203.0.113.2/24, MTU 9000", "roceP2p1s0f0"):
        assert told in warning.found


def test_n01_a_twin_with_another_mtu_than_its_partner_is_dropped_though_pings_of_the_smaller_one_pass() -> None:
    nodes = two(
        [*ONE[0], Port("enP2p1s0f0np0", "203.0.113.1", mtu=1500)],
        [*ONE[1], Port("enP2p1s0f0np0", "203.0.113.2", mtu=9000)],
    )
    (pairing,) = proved(nodes, plan(*FABRIC))
    assert devices(pairing) == [("rocep1s0f0", "rocep1s0f0")]
    (warning,) = pairing.findings
    for told in ("203.0.113.1/24, MTU 1500", "203.0.113.2/24, MTU 9000", "have different MTUs"):
        assert told in warning.found


def test_n01_a_twin_in_a_subnet_that_the_other_host_does_not_have_is_dropped() -> None:
    nodes = two([*ONE[0], Port("enP2p1s0f0np0", "203.0.113.1")], [*ONE[1], Port("enP2p1s0f0np0", "198.18.0.2")])
    (pairing,) = proved(nodes, plan(*FABRIC))
    assert len(pairing.rails) == 1
    assert "203.0.113.1 has no partner in its subnet" in pairing.findings[0].found


@pytest.mark.parametrize("second", ["203.0.113", "192.0.2"], ids=["own subnet", "the link's subnet"])
def test_n02_twins_make_exactly_two_rails_in_the_same_order_and_without_repeats(second: str) -> None:
    nodes = two(
        [Port("enP2p1s0f0np0", f"{second}.11"), Port("enp1s0f0np0", "192.0.2.1")],
        [Port("enp1s0f1np1", "192.0.2.2"), Port("enP2p1s0f1np1", f"{second}.12")],
    )
    (pairing,) = proved(nodes, plan(*FABRIC))
    assert devices(pairing) == [("rocep1s0f0", "rocep1s0f1"), ("roceP2p1s0f0", "roceP2p1s0f1")]
    assert pairing.findings == []


def test_n02_a_second_cabled_port_adds_its_rails_too() -> None:
    def ports(host: int) -> list[Port]:
        return [
            Port("enp1s0f0np0", f"192.0.2.{host}"),
            Port("enP2p1s0f0np0", f"203.0.113.{host}"),
            Port("enp1s0f1np1", f"198.18.0.{host}"),
            Port("enP2p1s0f1np1", f"198.19.0.{host}"),
        ]

    (pairing,) = proved(two(ports(1), ports(2)), plan(*FABRIC))
    assert [first for first, _ in devices(pairing)] == ["rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1", "roceP2p1s0f1"]
    assert all(first == second for first, second in devices(pairing))


def test_n02_with_two_cables_in_one_subnet_twins_meet_twins_and_no_port_stands_twice() -> None:
    head = ["enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"]
    worker = ["enp1s0f1np1", "enP2p1s0f0np0", "enp1s0f0np0", "enP2p1s0f1np1"]
    nodes = two(
        [Port(name, f"192.0.2.{at}") for at, name in zip((1, 11, 12, 13), head, strict=True)],
        [Port(name, f"192.0.2.{at}") for at, name in zip((2, 21, 22, 23), worker, strict=True)],
    )
    (pairing,) = proved(nodes, plan(*FABRIC))
    assert devices(pairing)[:2] == [("rocep1s0f0", "rocep1s0f1"), ("roceP2p1s0f0", "roceP2p1s0f1")]
    for end in zip(*devices(pairing), strict=True):
        assert len(set(end)) == 4


def test_a_single_rail_can_be_asked_for() -> None:
    nodes = two([*ONE[0], Port("enP2p1s0f0np0", "203.0.113.1")], [*ONE[1], Port("enP2p1s0f0np0", "203.0.113.2")])
    found = plan(*FABRIC)
    proved(nodes, found)
    (pairing,) = _link.pairings(found, nodes, explicit(found), one_rail=True)
    assert (len(pairing.rails), pairing.findings) == (1, [])


def test_n03_a_lan_address_of_the_worker_leads_to_its_address_on_the_cable() -> None:
    (pairing,) = proved(two(*ONE), plan("", ""))
    assert pairing.rails[0].second.address == "192.0.2.2"
    assert pairing.notes == ["198.51.100.2 is reached over enP7s7, not an RDMA port; the link uses 192.0.2.2 instead"]


def test_n03_an_address_behind_a_gateway_is_no_cable() -> None:
    nodes = two(*ONE)
    gateway = {"netdev": "enp1s0f0np0", "source": "192.0.2.1", "gateway": "192.0.2.254"}
    nodes[HEAD]["routes"] = {"192.0.2.2": gateway}
    (pairing,) = proved(nodes, plan("", ""))
    assert pairing.rails == []


def test_n03_without_any_address_on_a_cable_the_setting_is_named() -> None:
    nodes = two([Port("enp1s0f0np0", "192.0.2.1")], [Port("enp1s0f0np0", "203.0.113.2")])
    (finding,) = proved(nodes, plan("", ""))[0].findings
    assert (finding.host, finding.severity) == (HEAD, "error")
    assert "would leave through enP7s7 (198.51.100.1), which has no RDMA device" in finding.found
    assert "sparkpair_fabric_address" in finding.remedy


def test_n03_a_fabric_address_that_was_set_is_not_replaced_by_another() -> None:
    found = plan("", "198.51.100.7")
    nodes = two(*ONE)
    nodes[WORKER]["netdevs"][0]["addresses"].append({"address": "198.51.100.7", "prefix": 24})
    assert proved(nodes, found)[0].rails == []


def gids(**entries: tuple[str, str]) -> dict[int, tuple[str, str]]:
    return {int(name[1:]): entry for name, entry in entries.items()}


def test_n05_the_gid_index_is_where_address_and_type_agree_on_each_host_by_itself() -> None:
    own = mapped("192.0.2.1")
    head = Port("enp1s0f0np0", "192.0.2.1", gids=gids(i0=(LOCAL, V1), i1=(LOCAL, V2), i2=(own, V1), i4=(own, V2)))
    (pairing,) = proved(two([head], ONE[1]), plan(*FABRIC))
    assert (pairing.rails[0].first.gid_index, pairing.rails[0].second.gid_index) == (4, 3)


def test_n05_the_table_of_the_machine_is_read_with_its_gaps_and_types(tmp_path: Path) -> None:
    own = mapped("192.0.2.1")
    port = Port("enp1s0f0np0", "192.0.2.1", gids=gids(i0=(LOCAL, V1), i1=(LOCAL, V2), i2=(own, V1), i4=(own, V2)))
    seen = _roce_host._device(str(write_sysfs(tmp_path, [port])), "rocep1s0f0")
    # An index counts from the table's beginning, also where entries before it are all zero.
    assert [(gid["index"], gid["type"]) for gid in seen["gids"]] == [(0, V1), (1, V2), (2, V1), (4, V2)]
    assert _rails.gid_index({"devices": {"rocep1s0f0": seen}}, "rocep1s0f0", "192.0.2.1") == 4
    # An address that came after the boot has its entry where there was room.
    assert _rails.gid_index({"devices": {"rocep1s0f0": seen}}, "rocep1s0f0", "192.0.2.9") is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({1: (LOCAL, V2)}, f"RoCE v2 is there only for {LOCAL} (index 1)"),
        ({2: (mapped("192.0.2.2"), V1)}, "the address is at index 2 only with type IB/RoCE v1"),
        ({3: (mapped("192.0.2.77"), V2)}, "RoCE v2 is there only for 0000:0000:0000:0000:0000:ffff:c000:024d"),
        ({}, "its table is empty or all zero"),
    ],
    ids=["v2 for IPv6 only", "v1 only", "another address", "all zero"],
)
def test_n05_a_port_without_the_right_gid_is_refused_with_what_its_table_has(
    table: dict[int, tuple[str, str]], words: str
) -> None:
    nodes = two(ONE[0], [Port("enp1s0f0np0", "192.0.2.2", gids=table)])
    (finding,) = proved(nodes, plan(*FABRIC))[0].findings
    assert finding.host == WORKER
    assert f"rocep1s0f0 (enp1s0f0np0) has no RoCE v2 GID for 192.0.2.2: {words}" in finding.found


def test_n05_a_twin_with_its_gid_at_another_index_is_no_rail_because_nccl_takes_one_index() -> None:
    own = mapped("203.0.113.1")
    nodes = two(
        [*ONE[0], Port("enP2p1s0f0np0", "203.0.113.1", gids={5: (own, V2)})],
        [*ONE[1], Port("enP2p1s0f0np0", "203.0.113.2")],
    )
    (pairing,) = proved(nodes, plan(*FABRIC))
    assert len(pairing.rails) == 1
    assert "has its RoCE v2 GID at index 5, the link has it at 3" in pairing.findings[0].found


def test_n06_names_come_from_the_machines_and_may_differ() -> None:
    nodes = two(
        [Port("enp1s0f1np1", "192.0.2.77", up=False, state="1: DOWN"), Port("enp1s0f0np0", "192.0.2.1")],
        [Port("enp1s0f1np1", "192.0.2.2")],
    )
    (pairing,) = proved(nodes, plan(*FABRIC))
    assert devices(pairing) == [("rocep1s0f0", "rocep1s0f1")]
    assert pairing.findings == []


def test_n06_a_port_that_is_down_is_refused_by_name() -> None:
    nodes = two(ONE[0], [Port("enp1s0f0np0", "192.0.2.2", up=False)])
    (finding,) = proved(nodes, plan(*FABRIC))[0].findings
    assert (finding.host, "enp1s0f0np0 (192.0.2.2) is down" in finding.found) == (WORKER, True)


def test_n09_different_mtus_are_refused_with_both_numbers() -> None:
    nodes = two(ONE[0], [Port("enp1s0f0np0", "192.0.2.2", mtu=1500)])
    (finding,) = proved(nodes, plan(*FABRIC))[0].findings
    assert finding.severity == "error"
    assert "9000 on enp1s0f0np0 of a, 1500 on enp1s0f0np0 of b" in finding.found


def test_n09_a_link_that_does_not_carry_its_own_mtu_is_refused() -> None:
    (finding,) = proved(two(*ONE), plan(*FABRIC), lost=((WORKER, "enp1s0f0np0"),))[0].findings
    assert finding.severity == "error"
    assert "a ping of 8972 bytes that may not be fragmented is lost" in finding.found


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT"])
def test_n11_a_port_that_is_not_active_is_refused_before_nccl_falls_back_to_tcp(state: str) -> None:
    nodes = two([Port("enp1s0f0np0", "192.0.2.1", state=state)], ONE[1])
    (finding,) = proved(nodes, plan(*FABRIC))[0].findings
    assert f"the RDMA port of rocep1s0f0 (enp1s0f0np0) is {state.split()[1]}, not ACTIVE" in finding.found


def test_a_twin_whose_port_is_not_active_is_left_out() -> None:
    nodes = two(
        [*ONE[0], Port("enP2p1s0f0np0", "203.0.113.1", state="1: DOWN")],
        [*ONE[1], Port("enP2p1s0f0np0", "203.0.113.2")],
    )
    (pairing,) = proved(nodes, plan(*FABRIC))
    assert len(pairing.rails) == 1
    assert "roceP2p1s0f0 (enP2p1s0f0np0) of a has a port that is DOWN" in pairing.findings[0].found


def test_a_host_name_is_resolved_and_never_to_loopback() -> None:
    names = ("198.51.100.1", "spark-2")
    nodes = two(*ONE, resolved={"spark-2": ["127.0.1.1", "192.0.2.2"]})
    assert proved(nodes, plan("", "", connections=names))[0].rails[0].second.address == "192.0.2.2"
    nodes = two(*ONE, resolved={"spark-2": ["127.0.1.1"]})
    (finding,) = proved(nodes, plan("", "", connections=names))[0].findings
    assert "cannot resolve spark-2 to an IPv4 address that others have" in finding.found


def test_no_route_and_no_way_back_are_told_apart() -> None:
    nodes = two(*ONE)
    nodes[HEAD]["routes"] = {"192.0.2.2": {"error": "Network is unreachable"}}
    assert "there is no route to 192.0.2.2: Network is unreachable" in proved(nodes, plan(*FABRIC))[0].findings[0].found
    nodes = two(*ONE)
    nodes[WORKER]["routes"] = {"192.0.2.1": {"error": "Network is unreachable"}}
    (finding,) = proved(nodes, plan(*FABRIC))[0].findings
    assert (finding.host, "no route back to 192.0.2.1" in finding.found) == (WORKER, True)


def test_the_port_whose_address_was_set_is_taken_where_the_kernel_would_choose_its_twin() -> None:
    nodes = two([Port("enP2p1s0f0np0", "192.0.2.11"), *ONE[0]], ONE[1])
    nodes[HEAD]["routes"] = {"192.0.2.2": {"netdev": "enP2p1s0f0np0", "source": "192.0.2.11", "gateway": ""}}
    assert proved(nodes, plan(*FABRIC))[0].rails[0].first.device == "rocep1s0f0"


def test_one_function_decides_every_address_of_a_pair() -> None:
    nodes = two(*ONE)
    found = plan("", "")
    link = _link.measured(found, "0.0.0.0", nodes, proved(nodes, found))
    assert (link["transport"], link["rendezvous"]) == ("roce", "192.0.2.1")
    assert link["advertised"] == "198.51.100.1"
    assert link["nodes"][WORKER] == {
        "address": "192.0.2.2",
        "head_address": "192.0.2.1",
        "netdev": "enp1s0f0np0",
        "socket_netdev": "enp1s0f0np0",
        "devices": ["rocep1s0f0"],
        "gid_index": 3,
        "mtu": 9000,
    }
    assert "RoCE, 1 rail: a 192.0.2.1 on enp1s0f0np0 (rocep1s0f0, GID index 3)" in link["note"]


def test_three_hosts_meet_on_the_lan_and_use_every_device_toward_any_other() -> None:
    nodes = {
        "a": node("a", Port("enp1s0f0np0", "192.0.2.1"), Port("enp1s0f1np1", "203.0.113.1"), lan="198.51.100.1"),
        "b": node("b", Port("enp1s0f0np0", "192.0.2.2"), Port("enp1s0f1np1", "198.18.0.2"), lan="198.51.100.2"),
        "c": node("c", Port("enp1s0f0np0", "203.0.113.3"), Port("enp1s0f1np1", "198.18.0.3"), lan="198.51.100.3"),
    }
    found = plan("", "", "")
    link = _link.measured(found, "0.0.0.0", nodes, proved(nodes, found))
    assert link["rendezvous"] == "198.51.100.1"
    # A ring has a cable between every two hosts, and the head another address on each.
    assert [each["head_address"] for each in link["nodes"].values()] == ["192.0.2.1", "192.0.2.1", "203.0.113.1"]
    for each in link["nodes"].values():
        assert (each["socket_netdev"], sorted(each["devices"])) == ("enP7s7", ["rocep1s0f0", "rocep1s0f1"])
        assert each["gid_index"] == 3


def test_rdma_is_never_silently_given_up_where_a_host_has_it() -> None:
    without = {HEAD: node(HEAD, lan="198.51.100.1"), WORKER: node(WORKER, lan="198.51.100.2")}
    mixed = {**without, WORKER: node(WORKER, *ONE[1], lan="198.51.100.2")}
    assert not _link.wants_rdma("auto", True, without)
    assert _link.wants_rdma("auto", True, mixed)
    assert not _link.wants_rdma("tcp", True, mixed)
    assert not _link.wants_rdma("auto", False, mixed)


def test_names_without_rdma_lead_to_the_addresses_that_the_others_see() -> None:
    nodes = {
        HEAD: node(HEAD, lan="198.51.100.1", resolved={"spark-1": ["127.0.1.1"], "spark-2": ["198.51.100.2"]}),
        WORKER: node(WORKER, lan="198.51.100.2", resolved={"spark-1": ["198.51.100.1"], "spark-2": ["127.0.1.1"]}),
    }
    link = _link.plain(plan("", "", connections=("spark-1", "spark-2")), "0.0.0.0", nodes)
    assert (link["rendezvous"], link["nodes"][WORKER]["address"]) == ("198.51.100.1", "198.51.100.2")
    assert _link.nameless(link) == []
    nodes[HEAD]["resolved"] = {}
    (finding,) = _link.nameless(_link.plain(plan("", "", connections=("spark-1", "spark-2")), "0.0.0.0", nodes))
    assert (finding.host, finding.severity) == (WORKER, "error")
