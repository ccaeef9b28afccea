# SPDX-License-Identifier: Apache-2.0
"""Tensors over rails are the same bits as over gloo, whatever their size; the wire here is memory of this process.

The same over real verbs is in tests/pair.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sparkpair.comm.group import TensorGroup
from sparkpair.comm.local import LOOPBACK, join_store, local_group, open_store
from sparkpair.comm.ring import Ring
from sparkpair.comm.roce_group import RoceGroup

PAYLOAD = 4096
PATIENCE = 60.0


class Rails:
    """What OneShotGather is, between threads: the real protocol, with a copy for a write."""

    def __init__(self, rank: int, world: int, everybody: dict[int, Rails], news: threading.Condition) -> None:
        self.payload = PAYLOAD
        self.ring = Ring(rank, world, 2, PAYLOAD)
        self.table = memoryview(bytearray(self.ring.table_bytes))
        self.endpoint = {"rank": rank}
        self.met: list[Any] = []
        self.sizes: list[int] = []
        self.on_begin: Callable[[], None] = lambda: None
        self._everybody, self._news = everybody, news
        everybody[rank] = self

    def connect(self, endpoints: list[dict[str, Any]]) -> None:
        self.met = endpoints

    def try_rails(self) -> None:
        self.begin(self.payload)
        self.finish()
        self.sizes.clear()

    def begin(self, nbytes: int) -> int:
        self.on_begin()
        self.sizes.append(nbytes)
        with self._news:
            self.ring.begin(self.table, nbytes)
        return self.ring.part(self.ring.rank)

    def finish(self) -> list[int]:
        with self._news:
            for peer in self.ring.peers:
                for stripe in self.ring.stripes():
                    where = slice(stripe.offset, stripe.offset + stripe.length)
                    self._everybody[peer].table[where] = self.table[where]
                    self._everybody[peer].ring.arrived(self.ring.rank, stripe.rail, stripe.immediate)
            self._news.notify_all()
            assert self._news.wait_for(lambda: not self.ring.missing(self.table), PATIENCE)
        return [self.ring.part(rank) for rank in range(self.ring.world)]


def on_all(world: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work` returns for each rank, each in a thread of its own."""
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda rank=rank: found.update({rank: work(rank)})) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return [found[rank] for rank in range(world)]


def groups(world: int) -> list[RoceGroup]:
    """The ranks' groups over rails that are memory."""
    everybody: dict[int, Rails] = {}
    news = threading.Condition()
    store = open_store(world)

    def make(rank: int) -> RoceGroup:
        place = store if rank == 0 else join_store(store.port, world)
        rails: Any = everybody[rank]
        device = torch.device("cpu")
        return RoceGroup(rails, place, rank, world, address=LOOPBACK, timeout_s=PATIENCE, device=device)

    for rank in range(world):
        Rails(rank, world, everybody, news)
    return on_all(world, make)


def rails_of(group: RoceGroup) -> Rails:
    rails: Any = group._one_shot
    assert isinstance(rails, Rails)
    return rails


def exchanged(group: TensorGroup) -> list[Any]:
    """Sums, joined columns and numbers at sizes around the limit."""
    chance = torch.Generator().manual_seed(group.rank)
    sums = [
        group.sum_partials(torch.randn(rows, 64, generator=chance) * 10.0**group.rank) for rows in (1, 3, 16, 17, 200)
    ]
    shares = [
        group.join_columns(torch.randn(rows, 3 + (group.rank < 1), generator=chance), 3 * group.world + 1)
        for rows in (1, 256, 257)
    ]
    return [*sums, *shares, torch.tensor(group.gather_numbers([group.rank, 2**62 + group.rank]))]


@pytest.mark.parametrize("world", [2, 3])
def test_results_are_gloos_bit_for_bit_and_only_small_parts_go_over_rails(world: int) -> None:
    store = open_store(world)
    plain = on_all(world, lambda rank: local_group(store if rank == 0 else join_store(store.port, world), rank, world))
    made = groups(world)
    wanted = on_all(world, lambda rank: exchanged(plain[rank]))
    found = on_all(world, lambda rank: exchanged(made[rank]))
    for ours, gloos in zip(found, wanted, strict=True):
        for one, other in zip(ours, gloos, strict=True):
            assert torch.equal(one, other)
    # 16 rows of 64 numbers, and 256 of four, are just as large as may be.
    assert rails_of(made[0]).sizes == [256, 768, 4096, 16, 4096, 16]
    assert rails_of(made[0]).met == [{"rank": rank} for rank in range(world)]


@pytest.mark.parametrize("settled", [False, True])
def test_o01_before_the_first_step_is_over_a_gather_waits_for_all_ranks_before_its_limit_begins(settled: bool) -> None:
    first, second = groups(2)
    if settled:
        first.settle()
        second.settle()
    entered = threading.Event()
    begun_alone: list[bool] = []
    waits = threading.Event()

    def begin() -> None:
        begun_alone.append(not entered.is_set())
        waits.set()

    rails_of(first).on_begin = begin

    def work(rank: int) -> float:
        if rank == 1:
            while not (waits.is_set() or first.waiting):
                waits.wait(0.001)
            entered.set()
        return float((first, second)[rank].sum_partials(torch.ones(1)))

    assert on_all(2, work) == [2.0, 2.0]
    assert begun_alone == [settled]
