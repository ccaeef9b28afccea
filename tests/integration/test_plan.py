# SPDX-License-Identifier: Apache-2.0
"""The plan: equal to the published contract without touching a host, and every mistake at once with its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.site import HEAD, ROOT, WORKER, Run, Site

EXAMPLE = ROOT / "docs" / "examples" / "two-sparks.yml"
# Nobody answers at the addresses of this inventory, so that a run that touches a host cannot end well.
SPARKS = ("-i", "inventories/sparks")
USUAL = {"engine": "tensorfold", "port": 8888, "master_port": 29551}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Hosts of which nothing exists yet."""
    return Site(tmp_path / "site")


def planned(site: Site, target: Path, **settings: Any) -> tuple[Run, dict[str, Any]]:
    """A plan of two Sparks from the recorded facts, and what it wrote down as JSON."""
    run = site.run("plan", *SPARKS, recorded_facts=str(EXAMPLE), plan_json=str(target), **USUAL, **settings)
    assert run.returncode == 0, run.output
    return run, json.loads(target.read_text())


@pytest.mark.parametrize("release", ["v1.3.2", "v1.10"])
def test_the_plan_of_a_release_is_its_published_contract(site: Site, tmp_path: Path, release: str) -> None:
    # Relative paths count from where the command was started, as people mean them.
    _, document = planned(site, Path(os.path.relpath(tmp_path / "plan.json", ROOT)), release=release)
    golden = yaml.safe_load((ROOT / "tests" / "goldens" / f"tensorfold-{release}.yml").read_text())
    for found, expected in zip(document["ranks"], golden["ranks"], strict=True):
        assert len(found.pop("spec_hash")) == 64
        assert found == {key: value for key, value in expected.items() if value is not None}
    assert document["memory"]["window"] == 1048576
    assert document["memory"]["pool_tokens"] == golden["pool_tokens"]
    assert not site.home.exists()


def test_a_plan_tells_people_where_every_value_came_from_and_what_applies(site: Site, tmp_path: Path) -> None:
    extra = tmp_path / "more.yml"
    extra.write_text("---\nsparkpair_purpose: commercial\n")
    run = site.run("plan", *SPARKS, "-e", f"@{extra}", recorded_facts=str(EXAMPLE), cache_entries=8, **USUAL)
    assert run.returncode == 0, run.output
    told = run.told("Say what would be done")
    words = {line.split()[0]: line for line in told.splitlines() if line.startswith("sparkpair_")}
    assert words["sparkpair_purpose"].endswith(f'"commercial"  (set at {extra}:2)')
    assert words["sparkpair_drafter"].endswith('"mtp"  (derived: the purpose is commercial)')
    assert words["sparkpair_parallel"].endswith("1  (derived: mtp drafts on 2 Sparks)")
    assert words["sparkpair_kv"].endswith('"fp8"  (default)')
    for part in ("RANK 1 on spark-worker", "--drafter none", "download 177.9 GB", "checkpoint: Apache-2.0"):
        assert part in told
    assert "drafter DFlash2:" not in told


def test_mistakes_in_settings_and_in_recorded_facts_come_at_once_each_with_its_place(
    site: Site, tmp_path: Path
) -> None:
    facts = yaml.safe_load(EXAMPLE.read_text())
    del facts["hosts"][WORKER]["link"]["gid_index"]
    facts["hosts"][HEAD]["available_bytes"] = "plenty"
    recorded = tmp_path / "facts.yml"
    recorded.write_text(yaml.safe_dump(facts))
    wrong = {"release": "v1.3.2", "loop_guard": True, "threads": 4, "parallel": 8, "kvv": "fp8", "copy_max": 16}
    run = site.run("plan", *SPARKS, recorded_facts=str(recorded), **USUAL, **wrong)
    assert run.returncode != 0
    message = run.failure()
    for line in (
        "release v1.3.2 does not know it; it came with v1.9 (sparkpair_release)",
        "sparkpair_threads (spark-head, spark-worker): only the engine sparkpair understands it",
        "did you mean sparkpair_kv?",
        "16 is too large; allowed is a whole number from 1 to 15",
        "release v1.3.2 decodes at most 4 requests at once",
        f"{recorded}: hosts.{WORKER}.link.gid_index: it is missing",
        f"{recorded}: hosts.{HEAD}.available_bytes: 'plenty' is not a whole number",
    ):
        assert line in message, message
    # Where a number or true was set, ansible-core says less exactly.
    assert message.count(" Set ") == len(message.splitlines()) - 1


def test_facts_that_cannot_be_read_are_named(site: Site, tmp_path: Path) -> None:
    run = site.run("plan", *SPARKS, recorded_facts=str(tmp_path / "none.yml"), **USUAL)
    assert f"{tmp_path}/none.yml cannot be read: No such file or directory" in run.failure()


def test_recorded_facts_are_for_a_plan_only(site: Site) -> None:
    run = site.run("site", *SPARKS, recorded_facts=str(EXAMPLE), **USUAL)
    assert "sparkpair_recorded_facts: only playbooks/plan.yml reads it" in run.failure().replace(" (spark-head)", "")


def test_the_rehearsal_is_planned_by_a_look_that_leaves_nothing(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    run = site.run("plan", plan_json=str(target), context=4096)
    assert run.returncode == 0, run.output
    document = json.loads(target.read_text())
    assert [rank["host"] for rank in document["ranks"]] == [HEAD, WORKER]
    argv = document["ranks"][0]["argv"]
    assert argv[argv.index("--context") + 1] == "4096"
    assert "window    4096" in run.told("Say what would be done")
    assert not site.home.exists()


def test_a_check_writes_no_file(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    run = site.run("plan", *SPARKS, "--check", recorded_facts=str(EXAMPLE), plan_json=str(target), **USUAL)
    assert run.returncode == 0, run.output
    assert not target.exists()
