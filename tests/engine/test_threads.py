# SPDX-License-Identifier: Apache-2.0
"""As many threads compute for the engine's own thread as are asked for, which a thread does not learn by itself."""

from __future__ import annotations

import ctypes
import pathlib
import re

import pytest
import torch
from sparkpair.comm.lockstep import StepRunner
from sparkpair.drafting.policy import CopyDrafting

from tests.engine.test_exactness import collect, directory, engine, model, requests

__all__ = ["directory", "model"]


def openmp() -> ctypes.CDLL:
    """The library that PyTorch divides its work with: it knows a number for every thread."""
    loaded = re.findall(r"/\S*lib[gi]?omp[\w.-]*\.so\S*", pathlib.Path("/proc/self/maps").read_text())
    if not loaded:
        pytest.skip("this PyTorch divides its work without OpenMP")
    return ctypes.CDLL(loaded[0])


async def test_the_engines_thread_computes_with_the_number_that_was_set(
    model: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, seen = openmp(), []
    execute = StepRunner.execute

    def watched(*arguments: object) -> object:
        seen.append(library.omp_get_max_threads())
        return execute(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StepRunner, "execute", watched)
    before = torch.get_num_threads()
    # No number that a machine is likely to have by itself.
    torch.set_num_threads(3)
    try:
        with engine(model, CopyDrafting(0), lanes=1) as served:  # type: ignore[arg-type]
            await collect(served, requests()[1])
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {3}
