# SPDX-License-Identifier: Apache-2.0
"""The link's own netplan file: the cabled port and its twin, static, and never a second owner of a port."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.sparkpair.serving.plugins.module_utils import _managed_link

from tests.unit.plugins.module_utils.spark_nodes import Port, node

NETWORKS = ["192.168.100.0/24", "192.168.101.0/24"]
LINK, TWIN = "enp1s0f0np0", "enP2p1s0f0np0"
OTHER, OTHERS_TWIN = "enp1s0f1np1", "enP2p1s0f1np1"


def ports(*found: Port, rank: int = 0) -> list[tuple[str, str]]:
    wanted = _managed_link.planned(node("head", *found)["netdevs"], NETWORKS, rank)
    return [(port["netdev"], port["address"]) for port in wanted]


def test_the_cabled_port_and_its_twin_get_the_ranks_number_in_a_network_each() -> None:
    both = [Port(TWIN), Port(LINK)]
    assert ports(*both) == [(LINK, "192.168.100.10/24"), (TWIN, "192.168.101.10/24")]
    assert ports(*both, rank=1) == [(LINK, "192.168.100.11/24"), (TWIN, "192.168.101.11/24")]


def test_n06_a_port_that_is_down_is_left_alone() -> None:
    assert [name for name, _ in ports(Port(LINK, up=False), Port(TWIN, up=False), Port(OTHER), Port(OTHERS_TWIN))] == [
        OTHER,
        OTHERS_TWIN,
    ]
    with pytest.raises(_managed_link.NoPort, match=rf"no RDMA port .* has a live cable \(without one: {LINK}\)"):
        ports(Port(LINK, up=False))
    with pytest.raises(_managed_link.NoPort, match=r"it has no RDMA port\); connect"):
        ports()


def test_n10_the_file_is_static_and_waits_for_nobody() -> None:
    text = _managed_link.render([{"netdev": LINK, "address": "192.168.100.10/24"}], 9000)
    assert yaml.safe_load(text)["network"]["ethernets"][LINK] == {
        "addresses": ["192.168.100.10/24"],
        "mtu": 9000,
        "dhcp4": False,
        "dhcp6": False,
        "accept-ra": False,
        "link-local": [],
        "optional": True,
    }


@pytest.mark.parametrize("key", [LINK, f'"{LINK}"', f"'{LINK}'"])
def test_n14_a_port_that_another_file_configures_has_its_owner(key: str) -> None:
    files = {"/etc/netplan/40-cx7.yaml": f"network:\n  ethernets:\n    {key}:\n      dhcp4: true\n"}
    assert _managed_link.owners(files, [LINK, TWIN]) == {LINK: "/etc/netplan/40-cx7.yaml"}


def test_what_a_port_lacks_is_told_with_what_it_has() -> None:
    netdevs = node("head", Port(LINK, "192.0.2.1", mtu=1500))["netdevs"]
    assert _managed_link.missing(netdevs, [{"netdev": LINK, "address": "192.168.100.10/24"}], 9000) == [
        f"{LINK} should have 192.168.100.10/24 and has 192.0.2.1/24",
        f"{LINK} should have an MTU of 9000 and has 1500",
    ]
