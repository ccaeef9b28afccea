# SPDX-License-Identifier: Apache-2.0
"""The rehearsal in a directory of its own: real playbooks, real ranks, ports that nobody else has."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEAD, WORKER = "spark-head", "spark-worker"


@dataclasses.dataclass(frozen=True)
class Run:
    """A playbook's run: its exit code, everything it printed, and its tasks with a result by host."""

    returncode: int
    output: str
    tasks: list[dict[str, Any]]
    stats: dict[str, dict[str, int]]

    @property
    def changed(self) -> int:
        """How many tasks changed something, over all hosts."""
        return sum(host["changed"] for host in self.stats.values())

    def result(self, words: str, host: str = HEAD) -> dict[str, Any]:
        """What the first task whose name contains the words, and that was not skipped, did on a host."""
        found = [task["hosts"][host] for task in self.tasks if words in task["task"]["name"] and host in task["hosts"]]
        return next(result for result in found if not result.get("skipped"))

    def told(self, words: str, host: str = HEAD) -> str:
        """What the task whose name contains the words printed for people."""
        return str(self.result(words, host)["text"])

    def failure(self, host: str = HEAD) -> str:
        """The message of the task that failed on a host."""
        return next(str(task["hosts"][host]["msg"]) for task in self.tasks if task["hosts"].get(host, {}).get("failed"))


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at this moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def play(
    *words: str, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None, limit_s: float = 300
) -> Run:
    """Run ansible-playbook with `words` in this checkout, and read what its tasks did."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "ansible", "playbook", *words],
        cwd=ROOT,
        env={
            **os.environ,
            **(environment or {}),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "ANSIBLE_NOCOLOR": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    output = done.stdout + done.stderr
    begin = done.stdout.find('{\n    "custom_stats"')
    assert begin >= 0, output
    document, _ = json.JSONDecoder().raw_decode(done.stdout[begin:])
    tasks = [task for play in document["plays"] for task in play["tasks"]]
    return Run(done.returncode, output, tasks, document["stats"])


class Site:
    """A rehearsal whose hosts keep their state below one directory."""

    def __init__(self, home: Path, prefix: Sequence[str] = (), programs: Sequence[Path] = ()) -> None:
        self.home = home
        self.prefix = prefix
        # Directories of programs that the hosts find before others of the same name.
        self.path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        self.port, self.master_port = free_ports(2)

    def state_dir(self, host: str) -> Path:
        return self.home / host

    def run(self, playbook: str, *arguments: str, **settings: Any) -> Run:
        """Run a playbook of the collection with settings that win over the inventory's."""
        ours = {
            "sparkpair_state_dir": f"{self.home}/{{{{ inventory_hostname }}}}",
            "sparkpair_port": self.port,
            "sparkpair_master_port": self.master_port,
            **{f"sparkpair_{name}": value for name, value in settings.items()},
        }
        # What is tested is what becomes of the rehearsal's weights, not what they say.
        if "-i" not in arguments:
            ours.setdefault("sparkpair_miniature", "random")
        words = [f"playbooks/{playbook}.yml", "-e", json.dumps(ours), *arguments]
        return play(*words, prefix=self.prefix, environment={"PATH": self.path})

    def converge(self, **settings: Any) -> Run:
        """Run the site playbook, which must end well."""
        run = self.run("site", **settings)
        assert run.returncode == 0, run.output
        return run

    def live(self) -> list[int]:
        """Return the process ids of both ranks of a live pair, which is started only where none is live."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=10):
                return self.pids()
        except OSError:
            self.converge()
        return self.pids()

    def status(self, host: str) -> dict[str, Any]:
        """What the supervisor of a host's rank has written down."""
        number = 0 if host == HEAD else 1
        return json.loads((self.state_dir(host) / "ranks" / f"rank{number}" / "status.json").read_text())

    def pids(self) -> list[int]:
        """The process ids of both ranks."""
        return [self.status(host)["rank"]["pid"] for host in (HEAD, WORKER)]

    def logs(self, host: str) -> list[Path]:
        """The saved logs of a host, the oldest first."""
        return sorted((self.state_dir(host) / "logs").glob("*.log.gz"))


def lend_checkpoint(miniature: Path, site: Site) -> None:
    """Give both hosts a copy of a miniature with seed 0, so that they need not write their own."""
    for host in (HEAD, WORKER):
        shutil.copytree(miniature, site.state_dir(host) / "checkpoints" / "miniature-seed0")
