# SPDX-License-Identifier: Apache-2.0
"""A hub with one small repository, and hosts that have nothing yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.hub.hosts import REPO, Host, checkpoint
from tests.integration.hub.hub import Hub, serving


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({REPO: checkpoint()})) as running:
        yield running


@pytest.fixture
def head(tmp_path: Path) -> Host:
    return Host(tmp_path / "head")


@pytest.fixture
def worker(tmp_path: Path) -> Host:
    return Host(tmp_path / "worker")
