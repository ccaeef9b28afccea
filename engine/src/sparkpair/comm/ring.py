# SPDX-License-Identifier: Apache-2.0
"""The protocol of one-shot gathers, without a wire: slots, numbers, stripes and credits.

Every rank holds the same table: for each rank a ring of `SLOTS` slots. Gather number g uses slot g % SLOTS. A rank puts
its part into its own slot and writes that slot into the same place of every peer's table, so that a gather is over
when all slots of its number are there, and is read where it lies.

A slot begins with a header: the gather's number, the number of bytes, and through which gather the writer has read
this table. That last number is a credit: slot g % SLOTS at a peer may be written when the peer has read through
g - SLOTS. No message is needed to return credits, because a peer whose part of gather g - 1 is here had read
through g - 2 when it wrote it. So with two slots a rank never waits for a credit; it checks all the same, for an
overwritten slot would be a wrong answer without an error.

A large part goes in stripes, one a rail, each told by an immediate value of its own. Writes on one rail arrive in
order, those on different rails in any, and a peer may be one gather ahead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SLOTS: Final = 2
# The header's fields, and the space it takes, which keeps what follows aligned for any processor.
_HEADER: Final = struct.Struct("<QQQ")
HEADER_BYTES: Final = 64
_PAGE: Final = 4096
# Below this a part goes over the first rail alone. A second write costs about 2 us of processor, in which one rail of
# 14 GB/s carries 28 KiB: half of the part must be worth that.
STRIPE_FROM: Final = 64 * 1024
_NUMBER_BITS: Final = 24
_STRIPE_BITS: Final = 8


class OutOfStep(Exception):
    """A peer's writes are not those that this gather needs; `peer` is its rank, the text says what was found."""

    def __init__(self, peer: int, found: str) -> None:
        super().__init__(found)
        self.peer = peer


class Stripe(NamedTuple):
    """One write: `length` bytes at `offset`, in this table and in the peer's alike, over rail `rail`."""

    rail: int
    offset: int
    length: int
    immediate: int


@dataclass(slots=True)
class _Peer:
    # Through which gather it has read our parts.
    read: int = 0
    # Arrived stripes by gather number; no more than two numbers.
    arrived: dict[int, set[int]] = field(default_factory=dict)


class Ring:
    """One rank's table and what it knows of its peers. `payload` is the largest part in bytes."""

    def __init__(self, rank: int, world: int, rails: int, payload: int) -> None:
        self.rank = rank
        self.world = world
        self.payload = payload
        self.slot_bytes = -(-(HEADER_BYTES + payload) // _PAGE) * _PAGE
        self.table_bytes = world * SLOTS * self.slot_bytes
        # The gather that runs or ran last; its parts can be read until the next one begins.
        self.number = 0
        self._rails = rails
        self._nbytes = 0
        self._complete = True
        self._stripes: list[Stripe] = []
        # Peers whose part of this gather is not whole.
        self._absent: list[int] = []
        self._peers = {peer: _Peer() for peer in range(world) if peer != rank}
        # Writes of ours that are not acknowledged, by gather number.
        self._unsent: dict[int, int] = {}

    @property
    def peers(self) -> list[int]:
        """The other ranks."""
        return list(self._peers)

    def _slot(self, rank: int, number: int) -> int:
        return (rank * SLOTS + number % SLOTS) * self.slot_bytes

    def part(self, rank: int) -> int:
        """Where a rank's part of this gather begins."""
        return self._slot(rank, self.number) + HEADER_BYTES

    def sendable(self) -> bool:
        """Whether the next gather may begin: our own slot is not on its way to anybody any more."""
        return not self._unsent.get(self.number + 1 - SLOTS)

    def begin(self, table: memoryview, nbytes: int) -> None:
        """Open the next gather, in which every rank has `nbytes`; the own part is then to be filled.

        Raises OutOfStep when a peer has not read what its slot holds, RuntimeError when called too early.
        """
        if not self._complete or not self.sendable():
            raise RuntimeError("a gather begins while another is not over")
        if not 0 < nbytes <= self.payload:
            raise ValueError(f"a part of {nbytes} bytes; between 1 and {self.payload}")
        following = self.number + 1
        for peer, known in self._peers.items():
            if known.read < following - SLOTS:
                raise OutOfStep(
                    peer,
                    f"it has read through gather {known.read}, and gather {following} would overwrite what it has not",
                )
        # Whoever asks for the next gather is done with the last one.
        read = self.number
        self.number, self._nbytes, self._complete = following, nbytes, False
        self._stripes, self._absent = list(self._cut()), self.peers
        _HEADER.pack_into(table, self._slot(self.rank, following), following, read, nbytes)

    def stripes(self) -> list[Stripe]:
        """The writes that bring the own part to a peer; each counts as on its way until `sent`."""
        return self._stripes

    def _cut(self) -> Iterator[Stripe]:
        whole = HEADER_BYTES + self._nbytes
        count = self._rails if self._nbytes >= STRIPE_FROM else 1
        # Cut at whole headers' lengths, so that no stripe begins in the middle of a number.
        share = -(-whole // (count * HEADER_BYTES)) * HEADER_BYTES
        for rail in range(count):
            start = rail * share
            immediate = (self.number % (1 << _NUMBER_BITS)) << _STRIPE_BITS | rail
            yield Stripe(rail, self._slot(self.rank, self.number) + start, min(share, whole - start), immediate)

    def posted(self) -> None:
        """A write of this gather is on its way."""
        self._unsent[self.number] = self._unsent.get(self.number, 0) + 1

    def sent(self, number: int) -> None:
        """A write of gather `number` is acknowledged."""
        self._unsent[number] -= 1
        if not self._unsent[number]:
            del self._unsent[number]

    def arrived(self, peer: int, rail: int, immediate: int) -> None:
        """A peer's write has arrived over a rail. Raises OutOfStep when none like it can have been made."""
        low, stripe = immediate >> _STRIPE_BITS, immediate & ((1 << _STRIPE_BITS) - 1)
        ahead = (low - self.number) % (1 << _NUMBER_BITS)
        # A peer that has our part of this gather may have begun the next; none can be further.
        if ahead > 1 or (ahead == 0 and peer not in self._absent) or stripe != rail:
            raise OutOfStep(
                peer, f"it wrote stripe {stripe} of gather {low} over rail {rail} during gather {self.number}"
            )
        stripes = self._peers[peer].arrived.setdefault(self.number + ahead, set())
        if stripe in stripes:
            raise OutOfStep(peer, f"it wrote stripe {stripe} of gather {low} twice")
        stripes.add(stripe)

    def missing(self, table: memoryview) -> list[int]:
        """The peers whose part is not whole yet; when none is, the gather is over and its parts can be read.

        Raises OutOfStep when a peer gathers something else.
        """
        for peer in list(self._absent):
            known = self._peers[peer]
            stripes = known.arrived.get(self.number, ())
            # The header comes with the first stripe, and tells how many belong to it.
            read = self._check_header(peer, table) if 0 in stripes else 0
            if len(stripes) == len(self._stripes):
                known.read = read
                del known.arrived[self.number]
                self._absent.remove(peer)
        self._complete = not self._absent
        return self._absent

    def _check_header(self, peer: int, table: memoryview) -> int:
        """Through which gather the peer has read our parts."""
        number, read, nbytes = _HEADER.unpack_from(table, self._slot(peer, self.number))
        if number != self.number or nbytes != self._nbytes:
            raise OutOfStep(
                peer,
                f"its slot has {nbytes} bytes of gather {number}, ours {self._nbytes} bytes of gather {self.number}",
            )
        return int(read)
