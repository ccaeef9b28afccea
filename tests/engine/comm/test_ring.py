# SPDX-License-Identifier: Apache-2.0
"""The protocol of one-shot gathers over a simulated wire that delays writes, ordered on each rail only."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair.comm import ring as protocol
from sparkpair.comm.ring import HEADER_BYTES, OutOfStep, Ring, Stripe

GATHERS = 20
PAYLOAD = 512
SIZES = (8, 63, 128, 200, PAYLOAD)
# Stripes and numbers that wrap, at a size that a test can afford.
SMALL = {"STRIPE_FROM": 128, "_NUMBER_BITS": 3}


def pattern(rank: int, number: int, nbytes: int) -> bytes:
    return random.Random(f"{rank} {number}").randbytes(nbytes)


class Wire:
    """Writes between the ranks. Memory is read when a write is delivered, as a device does that sends again."""

    def __init__(self, world: int, rails: int) -> None:
        self.rings = [Ring(rank, world, rails, PAYLOAD) for rank in range(world)]
        self.tables = [memoryview(bytearray(ring.table_bytes)) for ring in self.rings]
        self.flying: dict[tuple[int, int, int], deque[tuple[Stripe, int]]] = {}
        # What happened at a rank and it has not seen yet: of each queue pair in order.
        self.seen: list[dict[tuple[int, int], deque[tuple[str, int]]]] = [{} for _ in range(world)]

    def write(self, source: int, target: int, stripe: Stripe) -> None:
        assert stripe.immediate < 1 << (protocol._NUMBER_BITS + protocol._STRIPE_BITS), "more than a write can carry"
        self.rings[source].posted()
        self.flying.setdefault((source, target, stripe.rail), deque()).append((stripe, self.rings[source].number))

    def deliver(self, way: tuple[int, int, int]) -> None:
        source, target, rail = way
        stripe, number = self.flying[way].popleft()
        where = slice(stripe.offset, stripe.offset + stripe.length)
        self.tables[target][where] = self.tables[source][where]
        self.seen[target].setdefault((source, rail), deque()).append(("arrived", stripe.immediate))
        self.seen[source].setdefault((target, rail), deque()).append(("sent", number))

    def see(self, rank: int, pair: tuple[int, int]) -> None:
        kind, value = self.seen[rank][pair].popleft()
        if kind == "arrived":
            self.rings[rank].arrived(*pair, value)
        else:
            self.rings[rank].sent(value)

    def parts(self, rank: int, nbytes: int) -> list[bytes]:
        ring = self.rings[rank]
        starts = [ring.part(other) for other in range(ring.world)]
        return [bytes(self.tables[rank][start : start + nbytes]) for start in starts]


def life(wire: Wire, rank: int, sizes: list[int]) -> Iterator[None]:
    """A rank that gathers `sizes` one after another; it yields where it has to wait."""
    ring, table = wire.rings[rank], wire.tables[rank]
    for number, nbytes in enumerate(sizes, start=1):
        while not ring.sendable():
            yield
        ring.begin(table, nbytes)
        own = ring.part(rank)
        table[own : own + nbytes] = pattern(rank, number, nbytes)
        for peer in ring.peers:
            for stripe in ring.stripes():
                wire.write(rank, peer, stripe)
        while ring.missing(table):
            yield
        wanted = [pattern(other, number, nbytes) for other in range(ring.world)]
        assert wire.parts(rank, nbytes) == wanted
        # The caller computes with what lies there while peers go on as far as they may.
        yield
        assert wire.parts(rank, nbytes) == wanted, "a part was overwritten while it was read"


@settings(max_examples=150, deadline=None)
@given(
    world=st.sampled_from([2, 3]),
    rails=st.sampled_from([1, 2]),
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=GATHERS),
    seed=st.integers(0, 2**32),
)
def test_every_rank_reads_every_part_whatever_the_wire_delays(
    world: int, rails: int, sizes: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(protocol, name, value)
        wire = Wire(world, rails)
        lives = {rank: life(wire, rank, sizes) for rank in range(world)}
        idle = 0
        while lives:
            ways = [way for way, writes in wire.flying.items() if writes]
            unseen = [(rank, pair) for rank in range(world) for pair, events in wire.seen[rank].items() if events]
            rank = chance.choice(sorted(lives))
            kind = chance.choice(["deliver", "see", "run"])
            if kind == "deliver" and ways:
                wire.deliver(chance.choice(ways))
            elif kind == "see" and unseen:
                wire.see(*chance.choice(unseen))
            elif next(lives[rank], "over") == "over":
                del lives[rank]
            idle = 0 if ways or unseen else idle + 1
            assert idle < 500, "nothing is on its way and ranks still wait"


def two_in_step(gathers: int) -> Wire:
    """Two ranks that have gathered so many times, eight bytes each."""
    wire = Wire(2, 1)
    lives = [life(wire, rank, [8] * gathers) for rank in range(2)]
    over = [False, False]
    while not all(over):
        over = [next(one, "over") == "over" for one in lives]
        for way in [way for way, writes in wire.flying.items() if writes]:
            wire.deliver(way)
        for rank in range(2):
            for pair in [pair for pair, events in wire.seen[rank].items() if events]:
                while wire.seen[rank][pair]:
                    wire.see(rank, pair)
    return wire


def begun_after(gathers: int) -> tuple[Ring, memoryview]:
    """Rank 0 in the gather after so many."""
    wire = two_in_step(gathers)
    wire.rings[0].begin(wire.tables[0], 8)
    return wire.rings[0], wire.tables[0]


def header(table: memoryview, ring: Ring, number: int, read: int, nbytes: int) -> None:
    """Write what rank 1 would have written into its slot of this gather."""
    start = ring.part(1) - HEADER_BYTES
    table[start : start + 24] = b"".join(value.to_bytes(8, "little") for value in (number, read, nbytes))


def test_a_slot_that_a_peer_has_not_read_is_not_overwritten() -> None:
    ring, table = begun_after(3)
    # Gather 5 uses the slot of gather 3, which this peer says it has not read.
    header(table, ring, 4, 2, 8)
    ring.arrived(1, 0, 4 << 8)
    assert ring.missing(table) == []
    with pytest.raises(OutOfStep, match="read through gather 2, and gather 5 would overwrite") as caught:
        ring.begin(table, 8)
    assert caught.value.peer == 1


def test_an_own_slot_is_not_filled_while_it_is_on_its_way() -> None:
    ring, table = Ring(0, 2, 1, PAYLOAD), memoryview(bytearray(Ring(0, 2, 1, PAYLOAD).table_bytes))
    for number in (1, 2):
        ring.begin(table, 8)
        ring.posted()
        header(table, ring, number, number - 1, 8)
        ring.arrived(1, 0, number << 8)
        assert ring.missing(table) == []
    assert not ring.sendable()
    with pytest.raises(RuntimeError, match="while another is not over"):
        ring.begin(table, 8)
    ring.sent(1)
    assert ring.sendable()


@pytest.mark.parametrize(
    ("number", "nbytes", "immediate", "found"),
    [
        (4, 16, 4 << 8, "its slot has 16 bytes of gather 4, ours 8 bytes of gather 4"),
        (3, 8, 4 << 8, "its slot has 8 bytes of gather 3"),
        (6, 8, 6 << 8, "it wrote stripe 0 of gather 6 over rail 0 during gather 4"),
        (3, 8, 3 << 8, "it wrote stripe 0 of gather 3 over rail 0 during gather 4"),
        (4, 8, 4 << 8 | 1, "it wrote stripe 1 of gather 4 over rail 0"),
    ],
)
def test_a_peer_that_gathers_something_else_is_found_out(number: int, nbytes: int, immediate: int, found: str) -> None:
    ring, table = begun_after(3)
    header(table, ring, number, 3, nbytes)

    def take() -> None:
        ring.arrived(1, 0, immediate)
        ring.missing(table)

    with pytest.raises(OutOfStep, match=found):
        take()


def test_a_write_that_comes_twice_is_found_out() -> None:
    ring, _ = begun_after(3)
    ring.arrived(1, 0, 4 << 8)
    with pytest.raises(OutOfStep, match="twice"):
        ring.arrived(1, 0, 4 << 8)


@pytest.mark.parametrize("rails", [1, 2, 3])
@pytest.mark.parametrize("nbytes", [1, protocol.STRIPE_FROM - 1, protocol.STRIPE_FROM, 512 * 1024 - 7])
def test_stripes_cover_header_and_part_once_and_small_parts_take_one_rail(rails: int, nbytes: int) -> None:
    ring = Ring(1, 3, rails, 512 * 1024)
    ring.begin(memoryview(bytearray(ring.table_bytes)), nbytes)
    stripes = ring.stripes()
    assert [stripe.rail for stripe in stripes] == list(range(rails if nbytes >= protocol.STRIPE_FROM else 1))
    assert stripes[0].offset == ring.part(1) - HEADER_BYTES
    assert all(one.offset + one.length == other.offset for one, other in pairwise(stripes))
    assert sum(stripe.length for stripe in stripes) == HEADER_BYTES + nbytes
    assert max(stripe.length for stripe in stripes) - min(stripe.length for stripe in stripes) <= rails * HEADER_BYTES


def test_slots_of_all_ranks_lie_apart_and_inside_the_table() -> None:
    spans = set()
    for number in (1, 2):
        ring = Ring(2, 3, 1, 1000)
        ring.number = number
        spans |= {(ring.part(rank) - HEADER_BYTES, ring.part(rank) + 1000) for rank in range(3)}
    ordered = sorted(spans)
    assert len(ordered) == 6
    assert all(end <= start for (_, end), (start, _) in pairwise(ordered))
    assert ordered[0][0] == 0
    assert ordered[-1][1] <= Ring(2, 3, 1, 1000).table_bytes
