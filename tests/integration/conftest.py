# SPDX-License-Identifier: Apache-2.0
"""What the tests of whole playbooks share: one miniature checkpoint, and a rehearsal that is torn down at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.site import Site, lend_checkpoint

# The files that take longest, each of them minutes.
LONGEST = ("test_site_containers.py", "test_site_lifecycle.py", "test_rank_process.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, so that short ones fill what is left of a second worker's time."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature checkpoint that the engine has written, with seed 0."""
    path = tmp_path_factory.mktemp("checkpoint") / "miniature"
    subprocess.run([sys.executable, "-m", "sparkpair", "miniature", str(path), "--seed", "0"], check=True, cwd="/")
    return path


@pytest.fixture(scope="module")
def pair(miniature: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A rehearsal for the tests of one module, with its checkpoint in place and nothing running yet."""
    site = Site(tmp_path_factory.mktemp("pair"))
    lend_checkpoint(miniature, site)
    yield site
    torn_down = site.run("teardown")
    assert torn_down.returncode == 0, torn_down.output
