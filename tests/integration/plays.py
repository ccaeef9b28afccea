# SPDX-License-Identifier: Apache-2.0
"""Runs real ansible-playbook on this machine for the tests of modules and actions."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Played:
    """What a run did: `results` has one entry a task, each a result by host."""

    returncode: int
    output: str
    results: list[dict[str, dict[str, Any]]]

    def one(self, task: int = 0, host: str = "head") -> dict[str, Any]:
        """The result of a task on a host."""
        return self.results[task][host]


def play(
    directory: Path,
    tasks: Sequence[dict[str, Any]],
    *arguments: str,
    hosts: dict[str, dict[str, Any]] | None = None,
    prefix: Sequence[str] = (),
    forgiving: bool = True,
    groups: dict[str, Sequence[str]] | None = None,
) -> Played:
    """Run tasks on hosts that all are this machine. Unless the run is not `forgiving`, a failing task keeps no later
    one from running; else the first failure on any host ends the run on all.
    """
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = directory / "inventory.json"
    children = {name: {"hosts": {member: {} for member in members}} for name, members in (groups or {}).items()}
    inventory.write_text(json.dumps({"all": {"vars": local, "hosts": hosts or {"head": {}}, "children": children}}))
    playbook = directory / "play.json"
    document = {
        "hosts": "all",
        "gather_facts": False,
        "any_errors_fatal": not forgiving,
        "tasks": [{**task, "ignore_errors": forgiving} for task in tasks],
    }
    playbook.write_text(json.dumps([document]))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        "ANSIBLE_LOCAL_TEMP": str(directory / "controller"),
        "ANSIBLE_REMOTE_TEMP": str(directory / "target"),
        "ANSIBLE_NOCOLOR": "1",
    }
    command = [*prefix, sys.executable, "-m", "ansible", "playbook", "-i", str(inventory), str(playbook), *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    output = run.stdout + run.stderr
    begin = run.stdout.find('{\n    "custom_stats"')
    assert begin >= 0, output
    document, _ = json.JSONDecoder().raw_decode(run.stdout[begin:])
    return Played(run.returncode, output, [task["hosts"] for task in document["plays"][0]["tasks"]])
