# SPDX-License-Identifier: Apache-2.0
"""The rails of two machines as roce_link_info really reported them, and what becomes of them without a twin.

recorded/virtual_pair.json is what `ansible -i inventories/pair sparks -m sparkpair.serving.roce_link_info` says of a
converged pair of virtual machines: other ports and GID indexes on either, and a VLAN of somebody else's on the worker.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _link

from tests.unit.plugins.module_utils.settings_files import effective, plan_of

RECORDED = Path(__file__).with_name("recorded") / "virtual_pair.json"
HOSTS = ("spark-head", "spark-worker")
HEAD_TWIN, WORKER_TWIN = "enP2p1s0f0np0", "enP2p1s0f1np1"


@pytest.fixture
def nodes() -> dict[str, dict[str, Any]]:
    """Both machines, as the first look found them."""
    return {host: {**node, "host": host} for host, node in json.loads(RECORDED.read_text()).items()}


def pairing(nodes: dict[str, dict[str, Any]], lost: str = "") -> _link.Pairing:
    """What is decided when all pings arrive but the worker's through the port `lost`."""
    plan = copy.deepcopy(plan_of(effective(*HOSTS, link="roce")))
    for entry, last in zip(plan["ranks"], (10, 11), strict=True):
        entry.update(address="", connection=f"198.51.100.{last}")
    explicit = dict.fromkeys(HOSTS, False)
    first = _link.pairings(plan, nodes, explicit, one_rail=False)
    for host, node in nodes.items():
        _, pings = _link.wanted(first, nodes, host)
        node["probes"] = [{**ping, "answered": (host, ping["netdev"]) != (HOSTS[1], lost)} for ping in pings]
    (found,) = _link.pairings(plan, nodes, explicit, one_rail=False)
    return found


def netdev(nodes: dict[str, dict[str, Any]], host: str, name: str) -> dict[str, Any]:
    return next(each for each in nodes[host]["netdevs"] if each["name"] == name)


def devices(found: _link.Pairing) -> list[tuple[str, str]]:
    return [(rail.first.device, rail.second.device) for rail in found.rails]


def test_a_pair_whose_ports_and_indexes_differ_has_two_rails_each_with_its_own_index(
    nodes: dict[str, dict[str, Any]],
) -> None:
    found = pairing(nodes)
    assert devices(found) == [("rocep1s0f0", "rocep1s0f1"), ("roceP2p1s0f0", "roceP2p1s0f1")]
    assert [(rail.first.gid_index, rail.second.gid_index) for rail in found.rails] == [(1, 3), (1, 3)]
    assert found.findings == []


def test_a_twin_that_loses_its_address_is_left_out_by_name(nodes: dict[str, dict[str, Any]]) -> None:
    netdev(nodes, HOSTS[1], WORKER_TWIN)["addresses"] = []
    found = pairing(nodes)
    assert devices(found) == [("rocep1s0f0", "rocep1s0f1")]
    assert f"roceP2p1s0f1 ({WORKER_TWIN}) of spark-worker is up and has no IPv4 address" in found.findings[0].found


def test_a_twin_that_lost_full_frames_is_left_out_with_both_mtus(nodes: dict[str, dict[str, Any]]) -> None:
    netdev(nodes, HOSTS[1], WORKER_TWIN)["mtu"] = 1500
    found = pairing(nodes, lost=WORKER_TWIN)
    assert devices(found) == [("rocep1s0f0", "rocep1s0f1")]
    assert "MTU 9000" in found.findings[0].found
    assert "MTU 1500" in found.findings[0].found
