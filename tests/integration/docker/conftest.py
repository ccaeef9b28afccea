# SPDX-License-Identifier: Apache-2.0
"""Two Docker daemons for the whole session of these tests, one for each host of a pair."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.docker.daemons import Daemon, missing, running


@pytest.fixture(scope="session")
def daemons() -> Iterator[list[Daemon]]:
    """A daemon for the head and one for the worker, with data of their own, stopped and removed at the end."""
    if packages := missing():
        pytest.skip(f"these tests start Docker daemons of their own: apt-get install {packages}")
    if os.geteuid() != 0:
        pytest.skip("only root may start a Docker daemon")
    with running(2) as both:
        yield both


@pytest.fixture
def clean(daemons: list[Daemon]) -> Iterator[list[Daemon]]:
    """The daemons, without any container before and after."""
    yield daemons
    for daemon in daemons:
        daemon.remove_containers()
