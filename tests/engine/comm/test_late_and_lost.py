# SPDX-License-Identifier: Apache-2.0
"""A peer whose part does not come is late or lost, and the two are told apart; the device here is memory and a queue.

The same over real verbs is in tests/pair.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sparkpair.comm import roce
from sparkpair.comm.rails import Rail, RailName
from sparkpair.comm.ring import Ring
from sparkpair.comm.roce import OneShotGather
from sparkpair.comm.verbs import Completion, Memory
from sparkpair.errors import PeerLost

PAYLOAD = 512
RAIL = Rail(RailName("rocep1s0f0", 3), bytes(16), "enp1s0f0np0")


class Device:
    """What verbs.Device is, for one queue pair whose other end is this test. It never wakes anybody."""

    mtu = 5

    def __init__(self, library: Any, name: str, completions: int) -> None:
        self.fd = os.eventfd(0)
        self.happened: list[Completion] = []

    def register(self, memory: Memory) -> tuple[int, int]:
        return 1, 2

    def create_pair(self, sends: int, receives: int) -> Device:
        return self

    # The queue pair's side.
    number, first = 77, 0

    def connect(self, *_: Any) -> None:
        """Be connected."""

    def post_receive(self) -> None:
        """Take another write."""

    def write(self, *_: Any) -> None:
        self.happened.append(Completion(self.number, False, _[-1], 0, "", False))

    def poll(self) -> list[Completion]:
        happened, self.happened = self.happened, []
        return happened

    def arm(self) -> None:
        """Promise an event, which does not come."""


class Pair:
    """Rank 0 over such a device, and what rank 1 would write."""

    def __init__(self, wait_s: float) -> None:
        self.lines: list[str] = []
        self.on_line: Callable[[], None] = lambda: None
        self.gather = OneShotGather(0, 2, [RAIL], PAYLOAD, wait_s, self.said)
        (self.device,) = self.gather._devices
        endpoint = {**self.gather.endpoint, "host": "spark-2"}
        endpoint["rails"][0]["pairs"]["0"] = (88, 0)
        endpoint["rails"][0]["pairs"]["1"] = (88, 0)
        self.gather.connect([endpoint, endpoint])
        self.peer = Ring(1, 2, 1, PAYLOAD)

    def said(self, line: str) -> None:
        self.lines.append(line)
        self.on_line()

    def peer_writes(self, part: bytes) -> None:
        """Rank 1's part of the gather that runs arrives."""
        table = self.gather.table
        self.peer.begin(table, len(part))
        start = self.peer.part(1)
        table[start : start + len(part)] = part
        (stripe,) = self.peer.stripes()
        self.device.happened.append(Completion(self.device.number, True, 0, stripe.immediate, "", False))

    def begin(self) -> None:
        start = self.gather.begin(8)
        self.gather.table[start : start + 8] = b"of ours."


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Pair]]:
    made: list[Pair] = []
    monkeypatch.setattr(roce, "Device", Device)
    monkeypatch.setattr(roce, "find_library", lambda: None)
    monkeypatch.setattr(roce, "LATE_S", 0.05)
    monkeypatch.setattr(roce, "LOOK_S", 0.01)

    def make(wait_s: float) -> Pair:
        made.append(Pair(wait_s))
        return made[-1]

    yield make
    for each in made:
        os.close(each.device.fd)


def test_o02_a_peer_that_is_late_is_waited_for_and_said_once_with_who_waits_for_whom(
    pair: Callable[[float], Pair],
) -> None:
    ours = pair(60.0)
    ours.begin()
    # Long beyond what counts as late, and the part comes only when that was said.
    ours.on_line = lambda: ours.peer_writes(b"of them.") if len(ours.lines) == 1 else None
    places = ours.gather.finish()
    assert [bytes(ours.gather.table[place : place + 8]) for place in places] == [b"of ours.", b"of them."]
    late, whole = ours.lines
    assert late.startswith("late: rank 1 on spark-2 in gather 1 for 0.")
    assert "it is late and not lost; after 60 s it counts as lost" in late
    assert whole.startswith("late: gather 1 is whole after 0.")


def test_o02_a_peer_is_lost_only_after_the_limit_that_was_set_and_is_named_with_it(
    pair: Callable[[float], Pair],
) -> None:
    ours = pair(0.3)
    ours.begin()
    with pytest.raises(PeerLost) as caught:
        ours.gather.finish()
    told = str(caught.value)
    assert told.startswith("rank 1 on spark-2 is lost: nothing came in gather 1 for 0.3 s, though no queue pair failed")
    assert "if it is only slow, raise --roce-wait" in told
    assert len(ours.lines) == 1


def test_o02_a_peer_that_has_gone_is_not_waited_for(pair: Callable[[float], Pair]) -> None:
    ours = pair(60.0)
    ours.begin()
    ours.gather.gone = lambda seconds: True
    with pytest.raises(RuntimeError, match="control channel has closed"):
        ours.gather.finish()
    assert ours.lines == []
