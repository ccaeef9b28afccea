# SPDX-License-Identifier: Apache-2.0
"""A tensor group whose ranks are all processes of this machine, for commands that need one only for a moment."""

from __future__ import annotations

from typing import Any

import torch

from sparkpair.comm.control import listen
from sparkpair.comm.group import TensorGroup, host_store, reach_store

LOOPBACK = "127.0.0.1"

# A rank of a short-lived local group that is this late has crashed.
TIMEOUT_S = 120.0


def open_store(world: int) -> Any:
    """The meeting place, kept by the process that will be rank 0; its `port` goes to the others."""
    return host_store(listen(LOOPBACK, 0, "--tp"), world)


def join_store(port: int, world: int) -> Any:
    """The same meeting place as another rank sees it."""
    return reach_store(LOOPBACK, port, world)


def local_group(store: Any, rank: int, world: int) -> TensorGroup:
    """This process's place in the group, on CPU."""
    return TensorGroup(store, rank, world, address=LOOPBACK, timeout_s=TIMEOUT_S, device=torch.device("cpu"))
