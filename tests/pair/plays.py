# SPDX-License-Identifier: Apache-2.0
"""The playbooks of the collection on the virtual machines, as a user runs them: with inventories/pair and settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.integration.site import Run
from tests.pair.paths import ROOT

# A start on emulated processors takes minutes.
_LIMIT_S = 1200


def run(playbook: str, *arguments: str, inventory: str = "pair", **settings: Any) -> Run:
    """Run a playbook with settings that win over those of one of this repository's inventories."""
    ours = json.dumps({f"sparkpair_{name}": value for name, value in settings.items()})
    words = [
        "-m",
        "ansible",
        "playbook",
        "-i",
        f"inventories/{inventory}",
        f"playbooks/{playbook}.yml",
        "-e",
        ours,
        *arguments,
    ]
    environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**environment, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    output = done.stdout + done.stderr
    begin = done.stdout.find('{\n    "custom_stats"')
    assert begin >= 0, output
    document, _ = json.JSONDecoder().raw_decode(done.stdout[begin:])
    tasks = [task for play in document["plays"] for task in play["tasks"]]
    return Run(done.returncode, output, tasks, document["stats"])


def live(inventory: str = "pair", **settings: Any) -> Run:
    """Run the site playbook, which must end LIVE."""
    found = run("site", inventory=inventory, **settings)
    assert found.returncode == 0, found.output
    assert found.told("Say how the pair serves").startswith("LIVE")
    return found
