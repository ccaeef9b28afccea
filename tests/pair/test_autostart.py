# SPDX-License-Identifier: Apache-2.0
"""The pair comes back by itself on machines with a real systemd: after reboots in any order, after a power cut, and not
when somebody stopped it or it failed three times. Its ranks are the cheapest there are; the API's steps are the proof.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.site import play
from tests.pair import layout, machines, plays
from tests.pair.paths import SSH_CONFIG

HEAD, WORKER = layout.NAMES[:2]
DEVICES = {HEAD: ["rocep1s0f0", "roceP2p1s0f0"], WORKER: ["rocep1s0f1", "roceP2p1s0f1"]}
_LIMIT_S = 300.0


class Supervised:
    """Two machines whose ranks are under their units."""

    def __init__(self, found: dict[str, machines.Machine], home: Path) -> None:
        self.head, self.worker = found[HEAD], found[WORKER]
        self.home = home
        wire = layout.wires(2)[0]
        ports = {end.machine: end.port for end in (wire.first, wire.second)}
        nodes = {
            name: {"address": layout.address(wire, name), "netdev": ports[name], "devices": DEVICES[name]}
            for name in ports
        }
        every = {
            "ansible_python_interpreter": "/usr/local/bin/spark-python",
            "ansible_ssh_common_args": f"-F {SSH_CONFIG}",
            "sparkpair_autostart": True,
            # Beside what was started on these machines by others.
            "sparkpair_state_dir": "~/.local/state/supervised/{{ inventory_hostname }}",
            "sparkpair_stop_timeout": 10,
            "sparkpair_wait_timeout": 120,
            "__roce_link_addresses": {"link": {"nodes": nodes}},
        }
        hosts = {name: {"sparkpair_fabric_address": nodes[name]["address"]} for name in nodes}
        children = {"head": {"hosts": {HEAD: hosts[HEAD]}}, "workers": {"hosts": {WORKER: hosts[WORKER]}}}
        self.inventory = home / "inventory.json"
        self.inventory.write_text(json.dumps({"sparks": {"vars": every, "children": children}}))

    def play(self, playbook: str, *arguments: str) -> tuple[int, str]:
        """Run a playbook; returns how many tasks changed something, and what it printed."""
        done = play("-i", str(self.inventory), playbook, *arguments, limit_s=plays.LIMIT_S)
        assert done.returncode == 0, done.output
        texts = [str(result.get("text", "")) for task in done.tasks for result in task["hosts"].values()]
        return done.changed, "\n".join(filter(None, texts))

    def install(self, *arguments: str) -> int:
        return self.play("tests/pair/autostart/install.yml", *arguments)[0]

    def status(self) -> str:
        return self.play("playbooks/status.yml")[1]

    def steps(self) -> dict[int, int]:
        """The steps that both ranks report over HTTP, nothing while nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.head.api}/health", timeout=10) as answer:
                return {one["rank"]: one["step"] for one in json.load(answer)["ranks"]}
        except (OSError, ValueError, urllib.error.URLError):
            return {}

    def serves(self, limit_s: float = _LIMIT_S) -> None:
        """Wait until both ranks go on, by the API's own words."""
        machines.wait(lambda: bool(self.steps()), limit_s, self.tell)
        before = self.steps()

        def further() -> bool:
            now = self.steps()
            return bool(before) and all(now.get(rank, 0) > before[rank] for rank in (0, 1))

        machines.wait(further, 60, self.tell)

    def tell(self) -> str:
        """What the units have said, for a failure."""
        log = "sudo journalctl --no-pager -n 40 -u 'sparkpair-*'"
        return "\n".join(machine.run(log, check=False).stdout for machine in (self.head, self.worker))

    def pids(self) -> list[str]:
        """The processes of the ranks, each with its machine's boot; empty for one that does not run."""
        look = "cat /proc/sys/kernel/random/boot_id; pgrep -f '^/usr/bin/python3 .*ranks.p[y]'"
        return [machine.run(look, check=False).stdout for machine in (self.head, self.worker)]

    def running(self) -> list[bool]:
        return [len(text.split()) > 1 for text in self.pids()]

    def unit(self, machine: machines.Machine, verb: str) -> str:
        return machine.run(f"sudo systemctl {verb} sparkpair-{machine.name}", check=False).stdout.strip()

    def remove(self) -> None:
        """Take everything of it from the machines."""
        self.install("-e", "sparkpair_autostart=false")
        for machine in (self.head, self.worker):
            machine.run("pkill -9 -f 'ranks.p[y]'; rm -rf ~/ranks ~/.local/state/supervised", check=False)

    def ends_as(self, state: str) -> None:
        """Wait until the head's unit is in a state of systemd's."""
        machines.wait(lambda: self.unit(self.head, "is-active") == state, _LIMIT_S, self.tell)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    """The machines that run, from which every other pair is taken first, or two that run for these tests."""
    with machines.found_or_running() as found:
        for inventory in ("pair_tensorfold", "pair"):
            if any(machine.run("docker ps --all --quiet").stdout for machine in found.values()):
                assert plays.run("teardown", inventory=inventory).returncode == 0
        machines.give_addresses(found)
        made = Supervised(found, tmp_path_factory.mktemp("autostart"))
        try:
            assert made.install("--check", "--diff") > 0
            assert made.install() > 0
            made.serves()
            yield made
        finally:
            made.remove()


def test_a_second_run_and_a_check_change_nothing_and_status_says_who_looks_after_the_pair(pair: Supervised) -> None:
    before = pair.pids()
    assert [pair.install(), pair.install("--check", "--diff")] == [0, 0]
    assert pair.pids() == before
    assert "autostart on, unit sparkpair-spark-head runs: serves" in pair.status()


def test_o06_either_machine_may_be_rebooted_and_both_in_either_order(pair: Supervised) -> None:
    for order in ((pair.worker,), (pair.head, pair.worker), (pair.worker, pair.head)):
        before = pair.pids()
        counts = [machine.starts() for machine in order]
        for machine in order:
            machine.run("sudo systemctl reboot", check=False)
        for machine, count in zip(order, counts, strict=True):
            machine.wait_up(count + 1)
        pair.serves()
        # Both ranks are new, also the one whose machine was not restarted.
        assert not set(" ".join(before).split()[1::2]) & set(" ".join(pair.pids()).split()[1::2])
    assert "failed start" not in pair.status()


def test_o06_a_worker_whose_power_was_cut_brings_the_pair_back_and_a_stop_by_hand_stays_over_a_reboot(
    pair: Supervised,
) -> None:
    pair.worker.power_cut()
    machines.wait(lambda: not pair.steps(), _LIMIT_S, pair.tell)
    # Without the worker's rank the head's does not go on.
    machines.wait(lambda: len(pair.head.run("pgrep -f 'ranks.p[y]'", check=False).stdout) == 0, _LIMIT_S, pair.tell)
    pair.worker.power_on()
    pair.serves()
    assert "failed start" not in pair.status()

    pair.unit(pair.head, "stop")
    assert pair.running() == [False, False]
    pair.head.reboot()
    pair.ends_as("inactive")
    assert pair.running() == [False, False]
    assert "was stopped by systemctl stop sparkpair-spark-head" in pair.status()
    pair.unit(pair.head, "start")
    pair.serves()


def test_three_failed_starts_keep_the_pair_down_and_status_says_why(pair: Supervised) -> None:
    pair.worker.run("echo -n '1 no room for the weights' > /home/spark/ranks/fault")
    killed = pair.worker.run("pkill -9 -f '^/usr/bin/python3 .*ranks.p[y]'", check=False)
    assert killed.returncode == 0
    pair.ends_as("failed")
    assert pair.running() == [False, False]
    told = pair.status()
    assert "failed start" in told
    assert "spark-worker: rank1 ended with exit code 7: error: no room for the weights" in told
    pair.worker.run("rm /home/spark/ranks/fault")
    pair.unit(pair.head, "start")
    pair.serves()


def test_what_was_installed_goes_as_a_whole_and_leaves_the_ranks_running(pair: Supervised) -> None:
    before = pair.pids()
    assert pair.install("-e", "sparkpair_autostart=false") > 0
    for machine in (pair.head, pair.worker):
        assert machine.run("ls /etc/systemd/system/sparkpair-*", check=False).stdout == ""
        assert "autostart" not in machine.run(f"ls ~/.local/state/supervised/{machine.name}").stdout
    assert pair.pids() == before
    pair.serves()
    assert "autostart off" in pair.status()
