# SPDX-License-Identifier: Apache-2.0
"""The playbooks as AWX runs them: through ansible-runner, answers of a survey as text, nobody there to type."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import ansible_runner

from tests.integration.site import HEAD, ROOT, Site, lend_checkpoint


def job(site: Site, place: Path, playbook: str, **answers: str) -> ansible_runner.Runner:
    """Run a playbook as a job does; the answers are JSON text, whatever the settings' types."""
    place.mkdir()
    extra = {
        "sparkpair_state_dir": f"{site.home}/{{{{ inventory_hostname }}}}",
        "sparkpair_port": str(site.port),
        "sparkpair_master_port": str(site.master_port),
        **{f"sparkpair_{name}": answer for name, answer in answers.items()},
    }
    environment = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return ansible_runner.interface.run(
        private_data_dir=str(place),
        project_dir=str(ROOT),
        inventory=str(ROOT / "inventories" / "rehearsal"),
        playbook=f"playbooks/{playbook}.yml",
        extravars=extra,
        envvars=environment,
        quiet=True,
        settings={"pexpect_timeout": 5, "job_timeout": 240},
    )


def told(run: ansible_runner.Runner, words: str) -> str:
    """What the task whose name contains the words printed for people."""
    found: list[dict[str, Any]] = [event["event_data"] for event in run.events if event["event"] == "runner_on_ok"]
    return next(one["res"]["text"] for one in found if words in one["task"] and one["host"] == HEAD)


def test_a_job_with_a_surveys_answers_brings_the_pair_up_and_down(tmp_path: Path, miniature: Path) -> None:
    site = Site(tmp_path / "site")
    lend_checkpoint(miniature, site)
    try:
        live = job(site, tmp_path / "site-job", "site", context="4096", thinking="no", parallel="", kv="")
        assert live.status == "successful", live.stdout.read()
        assert "window    4096 tokens" in told(live, "Say how the pair serves")
        # The ranks outlive the job, which ends everything else that it has started.
        with urllib.request.urlopen(f"http://127.0.0.1:{site.port}/v1/models", timeout=10) as models:
            assert models.status == 200
        again = job(site, tmp_path / "again", "site", context="4096", thinking="no")
        assert sum(again.stats["changed"].values()) == 0
    finally:
        down = job(site, tmp_path / "teardown-job", "teardown")
    assert down.status == "successful", down.stdout.read()
