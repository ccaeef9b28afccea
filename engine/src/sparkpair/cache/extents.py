# SPDX-License-Identifier: Apache-2.0
"""Where sequences' rows stand in the pool: extents of tokens on a grid. Plain bookkeeping, without tensors.

An extent goes to the lowest gap that fits (first fit). It may say how far it expects to grow; others are put behind
that as long as there is other room, so that it can grow where it stands. When no gap fits, `gather` slides extents
together until the free room is in one piece.
"""

from __future__ import annotations

import dataclasses

# Tokens of one unit of room. A multiple of every pool size of the indexer and of the block grid.
UNIT = 2048


def units(tokens: int, unit: int = UNIT) -> int:
    """`tokens` rounded up to whole units, at least one."""
    return max(1, -(-tokens // unit)) * unit


@dataclasses.dataclass(slots=True)
class Extent:
    """`size` tokens from `base` on; `wish` is what it may grow to, `used` how many of its rows somebody needs."""

    name: int
    base: int
    size: int
    wish: int
    used: int = 0

    @property
    def end(self) -> int:
        """The first token behind it."""
        return self.base + self.size


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """An extent's rows go to another `base`; to be done in the order given."""

    extent: Extent
    base: int


class Extents:
    """The extents of a pool of `tokens`, which do not overlap; all numbers are whole `unit`s."""

    def __init__(self, tokens: int, unit: int = UNIT) -> None:
        self.tokens = tokens
        self.unit = unit
        self._extents: dict[int, Extent] = {}
        self._names = 0

    def __getitem__(self, name: int) -> Extent:
        return self._extents[name]

    @property
    def free(self) -> int:
        """Tokens that no extent has."""
        return self.tokens - sum(extent.size for extent in self._extents.values())

    def _ordered(self) -> list[Extent]:
        return sorted(self._extents.values(), key=lambda extent: extent.base)

    def find(self, size: int, wish: int) -> int | None:
        """The base of the lowest gap for `size` tokens, None when there is none.

        Preferred is one that leaves room for `wish`, and for what the others wish; then any.
        """
        for wanted, respect in ((wish, True), (size, True), (size, False)):
            at = 0
            for extent in self._ordered():
                if extent.base - at >= wanted:
                    return at
                at = extent.base + (max(extent.size, extent.wish) if respect else extent.size)
            if self.tokens - at >= wanted:
                return at
        return None

    def add(self, base: int, size: int, wish: int) -> Extent:
        """A new extent in a gap that `find` named."""
        self._names += 1
        extent = self._extents[self._names] = Extent(self._names, base, size, wish)
        return extent

    def remove(self, extent: Extent) -> None:
        """Give an extent's room back."""
        del self._extents[extent.name]

    def room_behind(self, extent: Extent) -> int:
        """Free tokens right behind an extent."""
        after = [other.base for other in self._extents.values() if other.base > extent.base]
        return min(after, default=self.tokens) - extent.end

    def gather(self, before: Extent | None) -> list[Move]:
        """Bring all free room together, right behind `before`, or at the end of the pool where that is None.

        The extents up to `before` slide down and the others up, each without touching rows that are still to move.
        """
        ordered = self._ordered()
        split = len(ordered) if before is None else ordered.index(before) + 1
        moves = []
        at = 0
        for extent in ordered[:split]:
            if extent.base != at:
                moves.append(Move(extent, at))
            at += extent.size
        at = self.tokens
        for extent in reversed(ordered[split:]):
            at -= extent.size
            if extent.base != at:
                moves.append(Move(extent, at))
        for move in moves:
            move.extent.base = move.base
        return moves
