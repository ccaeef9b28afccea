# SPDX-License-Identifier: Apache-2.0
"""Tensor exchange between ranks: partial sums added in rank order, vocabulary shares joined.

There is no all-reduce: its order of addition could differ between ranks or runs. Every rank gathers every part and
adds them itself, rank 0 first, so that all ranks hold the same bits.
"""

from __future__ import annotations

import datetime
import socket
from typing import Any, Protocol

import torch
from torch import Tensor, distributed

from sparkpair.checkpoint.split import share

# torch's bindings carry no types.
_bindings: Any = distributed
Store = _bindings.TCPStore


class Group(Protocol):
    """What the model needs of its peers."""

    rank: int
    world: int

    @property
    def waiting(self) -> bool:
        """Whether this rank is in an exchange now, waiting for the others; asked from another thread."""

    def sum_partials(self, partial: Tensor) -> Tensor:
        """Sum of every rank's `partial` (fp32, any shape), added in rank order."""

    def join_columns(self, part: Tensor, width: int) -> Tensor:
        """`part` [n, share] of every rank side by side in rank order, [n, width]."""

    def gather_numbers(self, numbers: list[int]) -> list[list[int]]:
        """Every rank's list of 64-bit numbers (all of one length), in rank order."""

    def settle(self) -> None:
        """Every rank has executed a step: what is loaded and compiled once is behind them."""


class SoloGroup:
    """A world of one rank."""

    rank = 0
    world = 1
    waiting = False

    def sum_partials(self, partial: Tensor) -> Tensor:
        """The partial itself."""
        return partial

    def join_columns(self, part: Tensor, width: int) -> Tensor:
        """The part itself, which is all of it."""
        return part

    def gather_numbers(self, numbers: list[int]) -> list[list[int]]:
        """One list: ours."""
        return [numbers]

    def settle(self) -> None:
        """Nothing changes."""


def host_store(meeting: socket.socket, world: int) -> Any:
    """The store at which the ranks of a group find each other, on rank 0; takes over the listening socket."""
    address, port = meeting.getsockname()[:2]
    return Store(address, port, world, is_master=True, master_listen_fd=meeting.detach(), wait_for_workers=False)


def reach_store(address: str, port: int, world: int) -> Any:
    """The same store as another rank sees it."""
    return Store(address, port, world, is_master=False)


class TensorGroup:
    """Ranks that exchange tensors on `device`: over TCP through gloo on CPUs, through NCCL on NVIDIA GPUs.

    `address` is this rank's own address on the link. gloo is told of it, because it would otherwise resolve the host
    name, which on many machines is an alias of loopback. Operations raise RuntimeError when a peer is gone or does not
    answer within `timeout_s`.
    """

    def __init__(
        self, store: Any, rank: int, world: int, *, address: str, timeout_s: float, device: torch.device
    ) -> None:
        self.rank = rank
        self.world = world
        self.waiting = False
        self._device = device
        timeout = datetime.timedelta(seconds=timeout_s)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            options = _bindings.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._group = _bindings.ProcessGroupNCCL(store, rank, world, options)
        else:
            options = _bindings.ProcessGroupGloo._Options()
            options._devices = [_bindings.ProcessGroupGloo.create_device(hostname=address)]
            options._timeout = timeout
            self._group = _bindings.ProcessGroupGloo(store, rank, world, options)

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        self.waiting = True
        self._group.allgather([parts], [tensor]).wait()
        self.waiting = False
        return parts

    def sum_partials(self, partial: Tensor) -> Tensor:
        """See Group."""
        parts = self._gather(partial.contiguous())
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def join_columns(self, part: Tensor, width: int) -> Tensor:
        """See Group. Shares differ by at most one column, so the narrower ones travel padded."""
        widest = share(width, self.world, 0).stop
        padded = part.new_zeros(part.shape[0], widest)
        padded[:, : part.shape[1]] = part
        shares = [share(width, self.world, rank) for rank in range(self.world)]
        parts = self._gather(padded)
        return torch.cat([found[:, : cut.stop - cut.start] for found, cut in zip(parts, shares, strict=True)], dim=1)

    def gather_numbers(self, numbers: list[int]) -> list[list[int]]:
        """See Group."""
        return [part.tolist() for part in self._gather(torch.tensor(numbers, dtype=torch.int64, device=self._device))]

    def settle(self) -> None:
        """Nothing changes."""
