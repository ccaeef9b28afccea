# SPDX-License-Identifier: Apache-2.0
"""The link's own addresses on two hosts that are network namespaces: given, proved, kept, and taken back.

Only netplan is a program of our own here, which gives the ports what the file says:
the real one wants a whole machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.plays import ROOT, Played, play
from tests.integration.test_roce_link import LINK, TWIN, Cabled, cabled, ip
from tests.unit.plugins.module_utils.settings_files import effective, plan_of
from tests.unit.plugins.module_utils.spark_nodes import write_sysfs

__all__ = ["cabled"]

NETPLAN = """
import glob, subprocess, sys, yaml
for port in {ports!r}:
    subprocess.run(["ip", "addr", "flush", "dev", port, "scope", "global"], check=True)
    subprocess.run(["ip", "link", "set", port, "mtu", "1500"], check=True)
for path in sorted(glob.glob(sys.argv[1] + "/*.yaml")):
    for port, wanted in yaml.safe_load(open(path))["network"]["ethernets"].items():
        subprocess.run(["ip", "link", "set", port, "mtu", str(wanted["mtu"])], check=True)
        for address in wanted["addresses"]:
            subprocess.run(["ip", "addr", "add", address, "dev", port], check=True)
"""


class Sparks:
    """Two cabled hosts without addresses on their link, and netplan's directory of each."""

    def __init__(self, cabled: Cabled) -> None:
        self.cabled = cabled
        self.home = cabled.home
        for port in (LINK, TWIN):
            cabled.join(port, ("", 1500), ("", 1500))
        self.netplan = {host: self.home / f"netplan-{host}" for host in cabled.spaces}
        for directory in self.netplan.values():
            directory.mkdir()
        self.program = self.home / "netplan.py"
        self.program.write_text(NETPLAN.format(ports=[LINK, TWIN]))

    def run(self, *arguments: str, apply: list[str] | None = None, way_back_s: float = 60) -> Played:
        options = effective(*self.netplan, link="roce", manage_link=True)
        plan = plan_of(options)
        hosts: dict[str, dict[str, Any]] = {}
        for host, directory in self.netplan.items():
            options[host]["state_dir"] = str(self.home / f"state-{host}")
            interpreter = self.home / f"python-{host}"
            interpreter.write_text(f'#!/bin/sh\nexec ip netns exec {self.cabled.spaces[host]} {sys.executable} "$@"\n')
            interpreter.chmod(0o755)
            if not (self.home / f"sys-{host}").exists():
                write_sysfs(self.home / f"sys-{host}", self.cabled.ports[host])
            hosts[host] = {
                "ansible_become": False,
                "ansible_python_interpreter": str(interpreter),
                "__roce_link_sysfs": str(self.home / f"sys-{host}"),
                "__roce_link_netplan": str(directory),
                "__roce_link_guard": str(self.home / f"guard-{host}"),
                "__roce_link_apply": apply or [sys.executable, str(self.program), str(directory)],
                "__roce_link_way_back_s": way_back_s,
                "__settings_resolved": {"settings": options[host], "plan": plan},
                "__roce_link_rank": next(entry for entry in plan["ranks"] if entry["host"] == host),
            }
        tasks = [{"include_role": {"name": "sparkpair.serving.roce_link", "tasks_from": "managed"}}]
        return play(self.home, tasks, *arguments, hosts=hosts, forgiving=False)

    def file(self, host: str = "head") -> Path:
        return self.netplan[host] / "90-sparkpair-link.yaml"

    def addresses(self, host: str) -> list[str]:
        said = subprocess.run(
            ["ip", "-j", "-n", self.cabled.spaces[host], "-4", "addr", "show", "scope", "global"],
            check=True,
            capture_output=True,
            text=True,
        )
        return sorted(each["local"] for port in json.loads(said.stdout) for each in port["addr_info"])


@pytest.fixture
def sparks(cabled: Cabled) -> Sparks:
    return Sparks(cabled)


def test_n09_both_hosts_get_addresses_and_mtu_once_and_a_second_run_changes_nothing(sparks: Sparks) -> None:
    seen = sparks.run("--check", "--diff")
    assert seen.returncode == 0, seen.output
    assert not sparks.file().exists()
    first = sparks.run()
    assert first.returncode == 0, first.output
    assert sparks.file().stat().st_mode & 0o777 == 0o600
    assert sparks.addresses("head") == ["192.168.100.10", "192.168.101.10"]
    assert sparks.addresses("worker") == ["192.168.100.11", "192.168.101.11"]
    # The guard has heard that the link may stay, and is gone.
    assert not (sparks.home / "guard-head" / "pipe").exists()
    second = sparks.run()
    assert second.returncode == 0, second.output
    assert not any(result.get("changed") for task in second.results for result in task.values())


def test_n10_an_address_that_does_not_arrive_takes_the_file_back_and_names_networkmanager(sparks: Sparks) -> None:
    played = sparks.run(apply=["true"])
    assert played.returncode != 0
    assert f"{LINK} should have 192.168.100.10/24 and has no address" in played.output
    assert "nmcli device" in played.output
    assert not sparks.file("head").exists()
    assert not sparks.file("worker").exists()


def test_a_link_on_which_the_peer_does_not_answer_is_as_it_was_before(sparks: Sparks) -> None:
    assert sparks.run().returncode == 0
    before = sparks.file().read_text()
    for host in sparks.netplan:
        sparks.file(host).write_text(before.replace("mtu: 9000", "mtu: 1500"))
    space = sparks.cabled.spaces["worker"]
    for port in (LINK, TWIN):
        drop = f"tc qdisc add dev {port} root tbf rate 1gbit burst 2000 latency 50ms mtu 2000".split()
        subprocess.run(["ip", "netns", "exec", space, *drop], check=True)
    played = sparks.run()
    assert played.returncode != 0
    assert "No answer to a ping of 9000 bytes" in played.output
    assert "mtu: 1500" in sparks.file("head").read_text()
    assert "mtu: 1500" in sparks.file("worker").read_text()


def test_n14_a_port_that_another_file_configures_keeps_its_only_owner(sparks: Sparks) -> None:
    for host, number in (("head", 1), ("worker", 2)):
        ports = {port: {"addresses": [f"192.0.{net}.{number}/24"], "mtu": 9000} for net, port in ((2, LINK), (3, TWIN))}
        (sparks.netplan[host] / "40-cx7.yaml").write_text(json.dumps({"network": {"ethernets": ports}}, indent=2))
    played = sparks.run()
    assert played.returncode == 0, played.output
    assert not sparks.file().exists()
    assert [path.name for path in sparks.netplan["head"].iterdir()] == ["40-cx7.yaml"]


def test_without_a_word_in_time_the_host_takes_the_change_back_by_itself(sparks: Sparks) -> None:
    space = sparks.cabled.spaces["head"]
    script = (
        "from ansible_collections.sparkpair.serving.plugins.module_utils import _way_back\n"
        f"_way_back.change({str(sparks.file())!r}, 'network: {{ethernets: {{}}}}', {str(sparks.home / 'guard')!r}, 3,"
        f" ['ip', 'addr', 'add', '203.0.113.9/24', 'dev', {LINK!r}])\n"
    )
    watch = subprocess.Popen(["ip", "-n", space, "monitor", "address"], stdout=subprocess.PIPE, text=True, bufsize=1)
    assert watch.stdout is not None
    try:
        subprocess.run(
            ["ip", "netns", "exec", space, sys.executable, "-c", script],
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        )
        assert "203.0.113.9" in watch.stdout.readline() + watch.stdout.readline()
        # The way back runs the same command, which fails the second time; what counts is the file.
        ip("-n", space, "addr", "del", "203.0.113.9/24", "dev", LINK)
        while "203.0.113.9" not in (line := watch.stdout.readline()) or line.startswith("Deleted"):
            continue
    finally:
        watch.kill()
        watch.communicate()
    assert not sparks.file().exists()
