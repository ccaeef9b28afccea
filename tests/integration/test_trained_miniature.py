# SPDX-License-Identifier: Apache-2.0
"""The trained miniature that comes with an engine is what the hosts serve when a setting says so."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.site import HEAD, ROOT, WORKER, Site


@pytest.fixture
def package(miniature: Path, tmp_path: Path) -> Path:
    """A copy of the engine that has a trained miniature. Trained is what has no seed; its weights are random here."""
    sources = tmp_path / "package" / "sparkpair"
    shutil.copytree(ROOT / "engine" / "src" / "sparkpair", sources, ignore=shutil.ignore_patterns("__pycache__"))
    own = sources / "data" / "miniature"
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(miniature, own)
    manifest = json.loads((own / "manifest.json").read_text())
    (own / "manifest.json").write_text(json.dumps({**manifest, "seed": None}))
    return sources


def test_it_is_copied_once_and_looked_for_again_in_another_engine(package: Path, tmp_path: Path) -> None:
    site = Site(tmp_path / "state")
    settings = {
        "miniature": "trained",
        "engine_command": ["env", f"PYTHONPATH={package.parent}", sys.executable, "-m", "sparkpair"],
    }
    runs = [site.run("weights", **settings) for _ in range(2)]
    assert [(run.returncode, run.changed) for run in runs] == [(0, 2), (0, 0)], runs[0].output
    for host in (HEAD, WORKER):
        (written,) = (site.state_dir(host) / "checkpoints").iterdir()
        assert written.name == "miniature-trained"
        assert json.loads((written / "manifest.json").read_text())["seed"] is None
    shutil.rmtree(package / "data" / "miniature")
    refused = site.run("weights", **settings)
    assert refused.returncode != 0
    assert "this installation of sparkpair has no trained miniature" in refused.failure()
