# SPDX-License-Identifier: Apache-2.0
"""Where the tests' tensors are: on the CPU, or on the GPU that SPARKPAIR_TEST_DEVICE names (cuda, cuda:1).

The suite is the same on either. What makes a tensor in a test makes it here; random numbers are drawn on the CPU, so
that they are the same everywhere. Ranks that are processes get a GPU each (see `rank_device`).
"""

from __future__ import annotations

import functools
import os

import pytest
import torch

DEVICE = torch.device(os.environ.get("SPARKPAIR_TEST_DEVICE", "cpu"))

tensor = functools.partial(torch.tensor, device=DEVICE)
zeros = functools.partial(torch.zeros, device=DEVICE)
ones = functools.partial(torch.ones, device=DEVICE)
full = functools.partial(torch.full, device=DEVICE)
arange = functools.partial(torch.arange, device=DEVICE)
eye = functools.partial(torch.eye, device=DEVICE)
empty = functools.partial(torch.empty, device=DEVICE)


def randn(*shape: int, seed: int) -> torch.Tensor:
    """Normal numbers that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def rank_device(rank: int, world: int) -> str:
    """`--device` of a rank that is a process; skips the test where there are fewer GPUs than ranks."""
    if DEVICE.type == "cpu":
        return "cpu"
    if world > torch.cuda.device_count():
        pytest.skip(f"{world} ranks need {world} GPUs, and there are {torch.cuda.device_count()}")
    return f"cuda:{rank}"


ranks_as_threads = pytest.mark.skipif(
    DEVICE.type != "cpu", reason="ranks in one process exchange through gloo, on CPUs; tests/engine/pair has GPU ranks"
)
