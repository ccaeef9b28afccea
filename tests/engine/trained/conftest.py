# SPDX-License-Identifier: Apache-2.0
"""Directories of training of the tiny size, for each file of tests: new, trained, and with EXL3 experts."""

from __future__ import annotations

import pathlib

import pytest
from training.quantise import quantise
from training.train import Run, Settings, prepare

from tests.engine.trained.small import drawn


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("work")
    prepare(path, "tiny")
    return path


@pytest.fixture(scope="module")
def trained(work: pathlib.Path) -> pathlib.Path:
    """A directory in which a run ended at once."""
    Run(Settings(work=work, minutes=0.0, plan=1.0, size="tiny")).train(lambda _: None)
    return work


@pytest.fixture(scope="module")
def finished(trained: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same with its experts encoded."""
    target = tmp_path_factory.mktemp("finished")
    figures = quantise(trained, target, encoder=drawn)
    assert figures["matrices"] == 18
    return target
