# SPDX-License-Identifier: Apache-2.0
"""A miniature checkpoint and one pair that most tests share."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from sparkpair.checkpoint.miniature import write_miniature

from tests.engine.pair.ranks import World, running


@pytest.fixture(scope="session")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("pair") / "miniature"
    write_miniature(directory, seed=1, overrides={})
    return directory


@pytest.fixture(scope="module")
def pair(miniature: pathlib.Path) -> Iterator[World]:
    with running(miniature, 2, "--parallel", "4") as world:
        world.start_all()
        yield world
