# SPDX-License-Identifier: Apache-2.0
"""The role roce_link on two hosts with real ports, routes and pings: network namespaces joined by virtual cables.

Only /sys is a tree of our own, because no virtual cable has an RDMA device.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.plays import Played, play
from tests.unit.plugins.module_utils.settings_files import effective, plan_of
from tests.unit.plugins.module_utils.spark_nodes import Port, write_sysfs
from tests.waiting import until

HOSTS = ("head", "worker")
LINK, TWIN = "enp1s0f0np0", "enP2p1s0f0np0"


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Cabled:
    """Two namespaces; `join` lays a cable between two ports with addresses and MTUs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.spaces = {host: f"sparkpair-{home.name[-8:]}-{host}" for host in HOSTS}
        self.ports: dict[str, list[Port]] = {host: [] for host in HOSTS}
        for space in self.spaces.values():
            ip("netns", "add", space)

    def join(self, netdev: str, *ends: tuple[str, int], soft: bool = False) -> None:
        first, second = self.spaces.values()
        ip("link", "add", netdev, "netns", first, "type", "veth", "peer", "name", netdev, "netns", second)
        for host, (address, mtu) in zip(HOSTS, ends, strict=True):
            space = self.spaces[host]
            ip("-n", space, "link", "set", netdev, "mtu", str(mtu), "up")
            if address:
                ip("-n", space, "addr", "add", f"{address}/24", "dev", netdev)
            self.ports[host].append(Port(netdev, address, mtu=mtu, soft=soft))
        until(lambda: all(self.carries(space, netdev) for space in self.spaces.values()))

    @staticmethod
    def carries(space: str, netdev: str) -> bool:
        """Whether the kernel has told the port's own state; it does so a while after the last command has returned."""
        return json.loads(ip("-n", space, "-j", "link", "show", netdev))[0]["operstate"] == "UP"

    def remove(self) -> None:
        for space in self.spaces.values():
            ip("netns", "delete", space)

    def play(
        self,
        fabric: tuple[str, str] = ("192.0.2.1", "192.0.2.2"),
        tasks: tuple[str, ...] = ("main.yml",),
        **settings: Any,
    ) -> Played:
        """Run tasks of the role as site.yml would, with these addresses and settings."""
        options = effective(*HOSTS, **{"link": "roce", **settings})
        plan = plan_of(options)
        hosts = {}
        for host, entry in zip(HOSTS, plan["ranks"], strict=True):
            interpreter = self.home / f"python-{host}"
            interpreter.write_text(f'#!/bin/sh\nexec ip netns exec {self.spaces[host]} {sys.executable} "$@"\n')
            interpreter.chmod(0o755)
            entry.update(address=fabric[entry["rank"]], connection=f"198.51.100.{entry['rank'] + 1}")
            hosts[host] = {
                "ansible_python_interpreter": str(interpreter),
                "__roce_link_sysfs": str(write_sysfs(self.home / f"sys-{host}", self.ports[host])),
                "__settings_resolved": {"settings": options[host], "plan": plan},
                "__preflight_report": {"ports": {"master_port": 29551}},
                "__preflight_probe": {"probe": {"ranks": []}},
            }
        roles = [{"import_role": {"name": "sparkpair.serving.roce_link", "tasks_from": name}} for name in tasks]
        return play(self.home, roles, hosts=hosts)


@pytest.fixture
def cabled(tmp_path: Path) -> Iterator[Cabled]:
    try:
        one = Cabled(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this account may not make network namespaces: {error.stderr.strip()}")
    yield one
    one.remove()


def decided(played: Played) -> dict[str, Any]:
    """The link, the same for both hosts."""
    assert "link" in played.results[-1]["head"], played.output
    link = played.results[-1]["head"]["link"]
    assert played.results[-1]["worker"]["link"] == link
    return link


def test_both_rails_are_used_when_full_frames_pass_both_ways(cabled: Cabled) -> None:
    cabled.join(LINK, ("192.0.2.1", 9000), ("192.0.2.2", 9000))
    cabled.join(TWIN, ("203.0.113.1", 9000), ("203.0.113.2", 9000))
    link = decided(cabled.play())
    assert link["transport"] == "roce"
    assert [node["devices"] for node in link["nodes"].values()] == [["rocep1s0f0", "roceP2p1s0f0"]] * 2
    assert [node["gid_index"] for node in link["nodes"].values()] == [3, 3]


def test_devices_in_software_are_found_by_the_ports_that_they_name(cabled: Cabled) -> None:
    cabled.join(LINK, ("192.0.2.1", 9000), ("192.0.2.2", 9000), soft=True)
    cabled.join(TWIN, ("203.0.113.1", 9000), ("203.0.113.2", 9000), soft=True)
    link = decided(cabled.play())
    assert [node["devices"] for node in link["nodes"].values()] == [["rocep1s0f0", "roceP2p1s0f0"]] * 2


def test_a_twin_that_drops_full_frames_is_left_out_with_a_warning(cabled: Cabled) -> None:
    cabled.join(LINK, ("192.0.2.1", 1500), ("192.0.2.2", 1500))
    cabled.join(TWIN, ("203.0.113.1", 9000), ("203.0.113.2", 9000))
    # Both ends believe in 9000 bytes; a switch between them would not pass them.
    ip("-n", cabled.spaces["worker"], "link", "set", TWIN, "mtu", "9000")
    for space in cabled.spaces.values():
        shape = f"tc qdisc add dev {TWIN} root tbf rate 1gbit burst 2000 latency 50ms mtu 2000".split()
        subprocess.run(["ip", "netns", "exec", space, *shape], check=True)
    played = cabled.play()
    assert [node["devices"] for node in decided(played)["nodes"].values()] == [["rocep1s0f0"]] * 2
    (warning,) = played.results[-1]["head"]["warnings"]
    assert "a ping of 8972 bytes that may not be fragmented was lost" in warning


def test_a_lan_address_leads_to_the_cable(cabled: Cabled) -> None:
    cabled.join("enP7s7", ("198.51.100.1", 1500), ("198.51.100.2", 1500))
    # The LAN port has no RDMA device in /sys.
    for ports in cabled.ports.values():
        ports.clear()
    cabled.join(LINK, ("192.0.2.1", 9000), ("192.0.2.2", 9000))
    link = decided(cabled.play(fabric=("198.51.100.1", "198.51.100.2")))
    assert (link["rendezvous"], link["advertised"]) == ("192.0.2.1", "198.51.100.1")
    assert "198.51.100.2 is reached over enP7s7, not an RDMA port; the link uses 192.0.2.2 instead" in link["note"]


def test_everything_wrong_on_both_hosts_comes_at_once_and_from_the_first_host(cabled: Cabled) -> None:
    cabled.join(LINK, ("192.0.2.1", 9000), ("192.0.2.2", 1500))
    played = cabled.play()
    assert played.results[-1]["head"]["failed"]
    failure = played.results[-1]["head"]["msg"]
    assert "9000 on enp1s0f0np0 of head, 1500 on enp1s0f0np0 of worker" in failure
    assert "host head says why" in played.results[-1]["worker"]["msg"]


def test_a_missing_tool_is_named_with_its_package(cabled: Cabled, tmp_path: Path) -> None:
    cabled.join(LINK, ("192.0.2.1", 9000), ("192.0.2.2", 9000))
    played = play(
        tmp_path,
        [
            {
                "sparkpair.serving.roce_link_info": {"sysfs": str(tmp_path / "none")},
                "vars": {"ansible_python_interpreter": str(without(tmp_path, "ip"))},
            }
        ],
    )
    assert "there is no program ip on this host, and the link is found with it: install iproute2" in played.one()["msg"]


def without(home: Path, program: str) -> Path:
    """A Python for whose modules `program` is not installed."""
    empty = home / "empty"
    empty.touch()
    real = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    hidden = f'mount --bind {empty} {real} && exec {sys.executable} "$@"'
    interpreter = home / "python-without"
    interpreter.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{hidden}' sh \"$@\"\n")
    interpreter.chmod(0o755)
    return interpreter


def test_n07_what_the_link_carries_is_measured_over_both_rails_and_too_little_only_warned_of(cabled: Cabled) -> None:
    cabled.join(LINK, ("192.0.2.1", 9000), ("192.0.2.2", 9000))
    cabled.join(TWIN, ("203.0.113.1", 9000), ("203.0.113.2", 9000))
    # No virtual cable carries that much.
    played = cabled.play(tasks=("main.yml", "rate.yml"), link_floor_gbit=800)
    seen = played.results[-1]["worker"]
    assert (seen["reason"], seen["says_gbit"]) == ("", 200)
    sent, received = seen["rates"]["sent"], seen["rates"]["received"]
    assert min(sent, received) > 0
    (warning,) = seen["warnings"]
    assert f"the link carries {sent:g} Gbit/s to head and {received:g} from it. Wanted: at least 800" in warning
    assert (
        f"{sent:g} Gbit/s from worker to head, {received:g} back, with TCP over 2 of its rails at once" in played.output
    )
    assert played.returncode == 0
    # Nothing is left behind: a rank may listen where was measured.
    for space in cabled.spaces.values():
        listening = ["ip", "netns", "exec", space, "cat", "/proc/net/tcp"]
        assert " 0A " not in subprocess.run(listening, check=True, capture_output=True, text=True).stdout
