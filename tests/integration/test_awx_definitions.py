# SPDX-License-Identifier: Apache-2.0
"""What AWX is given, as far as it goes without a controller: the execution environment's definition is one that the
builder takes, and playbooks/awx.yml asks the modules of awx.awx for nothing that they do not have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.integration.site import ROOT

PLAYBOOK = ROOT / "playbooks" / "awx.yml"


def run(*command: str) -> str:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tasks() -> list[tuple[str, dict[str, Any]]]:
    """The tasks of the playbook that speak to a controller, each by its module."""
    (play,) = yaml.safe_load(PLAYBOOK.read_text())
    return [(name, task[name]) for task in play["tasks"] for name in task if name.startswith("awx.awx.")]


def test_the_execution_environment_is_one_that_can_be_built(tmp_path: Path) -> None:
    builder = Path(sys.executable).with_name("ansible-builder")
    definition = ROOT / "awx" / "execution-environment.yml"
    run(
        str(builder),
        "create",
        "--file",
        str(definition),
        "--context",
        str(tmp_path),
        "--output-filename",
        "Containerfile",
    )
    made = (tmp_path / "Containerfile").read_text()
    assert yaml.safe_load(definition.read_text())["images"]["base_image"]["name"] in made
    wanted = yaml.safe_load((tmp_path / "_build" / "requirements.yml").read_text())["collections"]
    # What the playbooks of the project use beside its own collection and ansible-core.
    used = {"community.docker": False, "awx.awx": False}
    for place in (*ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")):
        text = place.read_text()
        used = {name: found or f"{name}." in text for name, found in used.items()}
    assert sorted(one["name"] for one in wanted) == sorted(name for name, found in used.items() if found)


def test_every_option_that_awx_is_given_is_one_of_its_modules() -> None:
    found = tasks()
    modules = sorted({name for name, _ in found})
    assert len(modules) == 6
    shown = json.loads(run(sys.executable, "-m", "ansible", "doc", "--json", *modules))
    for name, options in found:
        known = shown[name]["doc"]["options"]
        assert set(options) <= set(known), name
        required = {option for option, about in known.items() if about.get("required")}
        assert required <= set(options), name
    run(sys.executable, "-m", "ansible", "playbook", "--syntax-check", str(PLAYBOOK))
