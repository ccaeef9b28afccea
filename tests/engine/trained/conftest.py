# SPDX-License-Identifier: Apache-2.0
"""A directory of training of the tiny size, its text files written, for each file of tests."""

from __future__ import annotations

import pathlib

import pytest
from training.train import prepare


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("work")
    prepare(path, "tiny")
    return path
