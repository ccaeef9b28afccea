# SPDX-License-Identifier: Apache-2.0
"""The collection as a thing to install and to read: its artifact, its documentation, its action group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.docs import docs_of

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
ROLES = {
    path.parent.parent.name: yaml.safe_load(path.read_text())["argument_specs"]
    for path in ROOT.glob("roles/*/meta/argument_specs.yml")
}


def ansible(program: str, *arguments: str) -> str:
    """The output of one of Ansible's programs, which must end well."""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    command = [sys.executable, "-m", "ansible", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ansible_doc_shows_every_module() -> None:
    shown: dict[str, Any] = json.loads(ansible("doc", "--json", *(f"sparkpair.serving.{name}" for name in MODULES)))
    for name in MODULES:
        page = shown[f"sparkpair.serving.{name}"]
        assert page["doc"]["attributes"]["check_mode"]["support"], name
        # Fragments included, as the generated page has them.
        documented = docs_of(ROOT / "plugins" / "modules" / f"{name}.py")["DOCUMENTATION"]
        for part in ("options", "attributes"):
            assert sorted(page["doc"].get(part, {})) == sorted(documented.get(part, {})), name
        assert page["examples"].strip(), name
        assert page["return"], name


def test_ansible_doc_shows_every_entry_point_of_every_role() -> None:
    assert sorted(ROLES) == sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
    shown = json.loads(ansible("doc", "-t", "role", "--json", *(f"sparkpair.serving.{role}" for role in ROLES)))
    for role, entries in ROLES.items():
        assert set(shown[f"sparkpair.serving.{role}"]["entry_points"]) == set(entries), role
        for entry in entries:
            assert (ROOT / "roles" / role / "tasks" / f"{entry}.yml").exists(), (role, entry)


def test_the_action_group_reaches_every_module() -> None:
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())
    assert runtime["action_groups"]["serving"] == MODULES


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built collection."""
    directory = tmp_path_factory.mktemp("artifact")
    ansible("galaxy", "collection", "build", "--output-path", str(directory))
    (built,) = directory.iterdir()
    return built


def test_the_artifact_holds_the_engine_and_nothing_that_only_a_checkout_needs(artifact: Path) -> None:
    with tarfile.open(artifact) as archive:
        names = {name.split("/")[0] for name in archive.getnames()}
        assert not any(member.issym() or member.islnk() for member in archive)
        assert "engine/pyproject.toml" in archive.getnames()
        data = (path for path in (ROOT / "engine" / "src" / "sparkpair" / "data").rglob("*") if path.is_file())
        assert {path.relative_to(ROOT).as_posix() for path in data} <= set(archive.getnames())
    assert {"roles", "plugins", "playbooks", "inventories", "engine", "docs", "LICENSE", "NOTICE"} <= names
    assert not names & {"collections", ".venv", ".git", "tests", "molecule", ".cache", "build", "Makefile"}


def test_the_installed_artifact_runs_its_playbooks_by_their_full_names(artifact: Path, tmp_path: Path) -> None:
    # By force, because the checkout counts as an installed collection of the same version. Without dependencies,
    # which only ranks in containers need, and for which Galaxy would be asked.
    ansible("galaxy", "collection", "install", str(artifact), "-p", str(tmp_path / "installed"), "--force", "--no-deps")
    installed = tmp_path / "installed" / "ansible_collections" / "sparkpair" / "serving"
    no_configuration = tmp_path / "ansible.cfg"
    no_configuration.touch()
    settings = {"sparkpair_state_dir": f"{tmp_path}/state/{{{{ inventory_hostname }}}}"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        "ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "installed"),
        "ANSIBLE_CONFIG": str(no_configuration),
    }
    inventory = str(installed / "inventories" / "rehearsal")
    command = [sys.executable, "-m", "ansible", "playbook", "-i", inventory, "--check", "-e", json.dumps(settings)]
    done = subprocess.run(
        [*command, "sparkpair.serving.site"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a real run would start or replace all ranks" in done.stdout
    assert str(ROOT) not in done.stdout
