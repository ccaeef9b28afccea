# SPDX-License-Identifier: Apache-2.0
"""What a run of site.yml costs that changes nothing, beside a play that only gathers facts, in turns and over a real
sshd.

    python bench/converge.py [--rounds N] [--json FILE] [--markdown FILE]

The pair is the rehearsal: two ranks of the miniature, each host an address of loopback with its own ssh connection. It
is brought up in a temporary directory and torn down at the end. A first round warms everything and does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report import add_outputs, publish

ROOT = Path(__file__).resolve().parent.parent
WANTED = {"ratio": 3.0, "heading_for": 1.2}
HOSTS = {"spark-head": ("head", "127.0.0.1"), "spark-worker": ("workers", "127.0.0.2")}


@contextlib.contextmanager
def sshd(place: Path) -> Iterator[dict[str, str]]:
    """An sshd of our own for this account's key; gives the variables that lead Ansible to it."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    if program is None:
        raise SystemExit("this needs an sshd: apt-get install openssh-server")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)], check=True)
    port = free_port()
    (place / "known").write_text(
        "".join(f"[{address}]:{port} {(place / 'host.pub').read_text()}" for _, address in HOSTS.values())
    )
    lines = [
        f"Port {port}",
        *(f"ListenAddress {address}" for _, address in HOSTS.values()),
        f"HostKey {place / 'host'}",
        f"AuthorizedKeysFile {place / 'user.pub'}",
        f"PidFile {place / 'sshd.pid'}",
        "PasswordAuthentication no",
        "PermitRootLogin prohibit-password",
        "StrictModes no",
        "UsePAM no",
    ]
    (place / "sshd_config").write_text("\n".join(lines) + "\n")
    if os.geteuid() == 0:
        # Where a daemon of root's gives up what it need not have.
        Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([program, "-D", "-e", "-f", str(place / "sshd_config")], stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            for _ in HOSTS:
                if b"listening" not in server.stderr.readline():
                    raise SystemExit(f"sshd does not start: {server.stderr.read().decode()}")
            yield {
                "ansible_connection": "ssh",
                "ansible_port": str(port),
                "ansible_user": getpass.getuser(),
                "ansible_ssh_private_key_file": str(place / "user"),
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={place / 'known'} -o IdentitiesOnly=yes",
            }
        finally:
            server.terminate()


def free_port() -> int:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Pair:
    """The rehearsal in a directory, reached over ssh."""

    def __init__(self, place: Path, reach: dict[str, str]) -> None:
        self._place = place
        self._settings = {
            **reach,
            "ansible_python_interpreter": sys.executable,
            "sparkpair_state_dir": f"{place}/{{{{ inventory_hostname }}}}",
            "sparkpair_port": free_port(),
            "sparkpair_master_port": free_port(),
            "sparkpair_fabric_address": "127.0.0.1",
            "sparkpair_host": "127.0.0.1",
            "sparkpair_engine_command": [sys.executable, "-m", "sparkpair"],
            "sparkpair_context": 16384,
            "sparkpair_memory_reserve_gib": 1,
        }
        groups = {group: {"hosts": {host: {"ansible_host": address}}} for host, (group, address) in HOSTS.items()}
        self._inventory = place / "inventory.json"
        self._inventory.write_text(json.dumps({"sparks": {"vars": self._settings, "children": groups}}))
        self._facts = place / "facts.json"
        self._facts.write_text(json.dumps([{"hosts": "head:workers", "gather_facts": True, "tasks": []}]))

    def play(self, playbook: str) -> tuple[float, dict[str, Any]]:
        """Run a playbook of the collection, or the play that only gathers facts; seconds and Ansible's own account."""
        path = str(self._facts) if playbook == "facts" else f"playbooks/{playbook}.yml"
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        }
        command = [sys.executable, "-m", "ansible", "playbook", "-i", str(self._inventory), path]
        begun = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - begun
        if done.returncode != 0:
            raise SystemExit(f"{playbook} failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
        document, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.find('{\n    "custom_stats"') :])
        return seconds, document


def tasks_of(document: dict[str, Any]) -> tuple[int, int]:
    """How many tasks a run had, and how many of them were not skipped on some host."""
    tasks = [task for play in document["plays"] for task in play["tasks"]]
    ran = [task for task in tasks if any(not result.get("skipped") for result in task["hosts"].values())]
    return len(tasks), len(ran)


def measure(pair: Pair, rounds: int) -> dict[str, Any]:
    """Facts and a run that changes nothing in turns; medians, and the ratio of each turn."""
    taken: dict[str, list[float]] = {"facts": [], "site": []}
    document: dict[str, Any] = {}
    for number in range(rounds + 1):
        for name, seconds in taken.items():
            spent, document = pair.play(name)
            if number:
                seconds.append(spent)
            if name == "site" and any(host["changed"] for host in document["stats"].values()):
                raise SystemExit("a run that should have changed nothing changed something")
    ratios = [site / facts for site, facts in zip(taken["site"], taken["facts"], strict=True)]
    every, ran = tasks_of(document)
    return {
        "facts_s": statistics.median(taken["facts"]),
        "site_s": statistics.median(taken["site"]),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "tasks": every,
        "tasks_not_skipped": ran,
    }


def markdown(found: dict[str, Any]) -> str:
    """The figures for people."""
    spread = f"{min(found['ratios']):.2f} to {max(found['ratios']):.2f}"
    return (
        "| gather_facts, s | site.yml without a change, s | ratio | range | tasks, and not skipped |\n"
        "| --- | --- | --- | --- | --- |\n"
        f"| {found['facts_s']:.2f} | {found['site_s']:.2f} | {found['ratio']:.2f} | {spread} |"
        f" {found['tasks']}, {found['tasks_not_skipped']} |\n\n"
        f"Wanted at most {WANTED['ratio']:.0f}, heading for {WANTED['heading_for']}.\n"
    )


def main() -> int:
    """Measure and report. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="repetitions (default %(default)s)")
    add_outputs(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparkpair-bench-") as directory, sshd(Path(directory)) as reach:
        pair = Pair(Path(directory), reach)
        try:
            pair.play("site")
            found = measure(pair, options.rounds)
        finally:
            pair.play("teardown")
    text = markdown(found)
    publish(options, text, {**found, "wanted": WANTED})
    return 0


if __name__ == "__main__":
    sys.exit(main())
