# SPDX-License-Identifier: Apache-2.0
"""Rank 0's bookkeeping of the pool: who has which rows, what is kept, and what every rank is told about it.

- A request is admitted when the pool could hold every running request in full, prompt and longest reply. So a request
  that runs never waits for room, and two can never block each other.
- Room that running requests do not use is for kept prompts. They go only when there is too little free room in all;
  free room that is in pieces is gathered first.
- Kept prompts and the request that continues them may share an extent, for as long as only one request writes behind
  them. A second one takes a copy of their rows; where the pool cannot hold both, what stands behind them goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkpair.cache.extents import UNIT, Extent, Extents, Move, units
from sparkpair.cache.orders import Order
from sparkpair.cache.prompts import Entry, KeptPrompts
from sparkpair.request import Logits


class PoolKeeper:
    """Decides; `take_orders` are what the ranks have to carry out to follow. `unit` is a test's to choose."""

    def __init__(
        self, tokens: int, *, most_kept: int, entry_bytes: int = 0, token_bytes: int = 0, unit: int = UNIT
    ) -> None:
        self._extents = Extents(tokens // unit * unit, unit)
        self._prompts = KeptPrompts(most_kept, self._gone)
        self._entry_bytes = entry_bytes
        self._token_bytes = token_bytes
        self._slots: dict[int, Extent] = {}
        self._orders: list[Order] = []
        # States that the next step keeps, by name, each with the sequence whose state it is.
        self._keeping: dict[int, int] = {}

    @property
    def tokens(self) -> int:
        """Tokens of the pool."""
        return self._extents.tokens

    @property
    def free_tokens(self) -> int:
        """Tokens that neither a request nor a kept prompt has."""
        return self._extents.free

    @property
    def kept_count(self) -> int:
        """Number of kept states."""
        return self._prompts.count

    @property
    def kept_bytes(self) -> int:
        """Bytes of all kept states on a rank, rows that a running request shares with them included."""
        longest: dict[int, int] = {}
        for entry in self._prompts.entries:
            longest[entry.extent] = max(longest.get(entry.extent, 0), entry.rows)
        return self.kept_count * self._entry_bytes + sum(longest.values()) * self._token_bytes

    def take_orders(self) -> list[Order]:
        """The orders since the last call."""
        orders, self._orders = self._orders, []
        return orders

    def take_keeping(self) -> dict[int, int]:
        """What the next step has to keep, by sequence the name."""
        keeping, self._keeping = self._keeping, {}
        return {slot: name for name, slot in keeping.items()}

    def fits(self, tokens: int) -> bool:
        """Whether a request of `tokens`, prompt and longest reply, can run beside those that do."""
        promised = sum(extent.wish for extent in self._slots.values())
        return promised + units(tokens, self._extents.unit) <= self._extents.tokens

    def divergence(self, content: Sequence[int]) -> int:
        """See KeptPrompts."""
        return self._prompts.divergence(content)

    def begin(self, slot: int, content: Sequence[int], tokens: int) -> Entry | None:
        """Give a sequence that `fits` its extent, and the kept state that it resumes, if there is one."""
        size, wish = units(len(content), self._extents.unit), units(tokens, self._extents.unit)
        entry = self._prompts.find(content)
        if entry is None:
            self._slots[slot] = self._placed(size, wish)
            self.need(slot, len(content))
            self._orders.append(Order("start", slot, source=self._slots[slot].name))
            return None
        extent = self._extents[entry.extent]
        if self._writer(extent) or (extent.used > entry.rows and self._could_hold(extent, size)):
            copy = self._placed(size, wish, spare=entry)
            self._orders.append(Order("copy", copy.name, rows=entry.rows, source=extent.name))
            copy.used = entry.rows
            extent = copy
        else:
            for other in self._prompts.within(extent.name):
                if other.rows > entry.rows:
                    self._prompts.drop(other)
            extent.wish = wish
        self._slots[slot] = extent
        self.need(slot, len(content))
        self._orders.append(Order("resume", slot, source=extent.name, kept=entry.name))
        return entry

    def need(self, slot: int, tokens: int) -> None:
        """A sequence is about to have `tokens` rows, at most what it began with."""
        extent = self._slots[slot]
        size = units(tokens, self._extents.unit)
        if size > extent.size:
            self._grow(extent, size)
        extent.used = max(extent.used, tokens)

    def keep(self, slot: int, content: Sequence[int]) -> None:
        """Remember the state that a sequence will have behind the next step, after `content`."""
        name = self._prompts.add(content, self._slots[slot].name)
        if name:
            self._keeping[name] = slot

    def complete(self, name: int, logits: Logits) -> None:
        """See KeptPrompts."""
        self._prompts.complete(name, logits)

    def release(self, slot: int) -> None:
        """A sequence has ended."""
        extent = self._slots.pop(slot)
        self._orders.append(Order("release", slot))
        self._settle(extent)

    def _writer(self, extent: Extent) -> bool:
        return any(other is extent for other in self._slots.values())

    def _could_hold(self, kept: Extent, size: int) -> bool:
        """Whether `size` tokens more have room when everything kept goes but what is in `kept`."""
        running = sum(extent.size for extent in self._slots.values())
        return running + kept.size + size <= self._extents.tokens

    def _placed(self, size: int, wish: int, spare: Entry | None = None) -> Extent:
        """A new extent, for which kept states go as far as they must, but never `spare`."""
        while (base := self._extents.find(size, wish)) is None:
            if self._extents.free >= size:
                self._move(self._extents.gather(None))
            else:
                self._evict(spare)
        extent = self._extents.add(base, size, wish)
        self._orders.append(Order("place", extent.name, base=base, size=size))
        return extent

    def _grow(self, extent: Extent, size: int) -> None:
        """More room for an extent: where it stands, in a larger gap, or behind it once free room is gathered there."""
        more = size - extent.size
        while self._extents.room_behind(extent) < more:
            base = self._extents.find(size, extent.wish)
            if base is not None:
                self._move([Move(extent, base)])
                break
            if self._extents.free >= more:
                self._move(self._extents.gather(extent))
            else:
                self._evict(None)
        extent.size = size
        self._orders.append(Order("place", extent.name, base=extent.base, size=size))

    def _move(self, moves: list[Move]) -> None:
        for move in moves:
            move.extent.base = move.base
            self._orders.append(Order("move", move.extent.name, base=move.base, rows=move.extent.used))

    def _evict(self, spare: Entry | None) -> None:
        """Let the next kept state go whose rows stand in no running request's extent: those cost no room."""
        for entry in self._prompts.order():
            if entry is not spare and not self._writer(self._extents[entry.extent]):
                self._prompts.drop(entry)
                return
        raise RuntimeError("the pool has no room for a request that was admitted")

    def _gone(self, entry: Entry) -> None:
        # What has to go again before the step that would keep it is never kept.
        if self._keeping.pop(entry.name, None) is None:
            self._orders.append(Order("drop", entry.name))
        self._settle(self._extents[entry.extent])

    def _settle(self, extent: Extent) -> None:
        """Give back what nobody needs of an extent in which nobody writes."""
        if self._writer(extent):
            return
        kept = self._prompts.within(extent.name)
        if not kept:
            self._extents.remove(extent)
            self._orders.append(Order("free", extent.name))
            return
        extent.used = max(entry.rows for entry in kept)
        size = min(extent.size, units(extent.used, self._extents.unit))
        extent.wish = size
        if size < extent.size:
            extent.size = size
            self._orders.append(Order("place", extent.name, base=extent.base, size=size))
