# SPDX-License-Identifier: Apache-2.0
"""Rank 0's bookkeeping of the pool against a rank that carries out its orders on rows that name their owner."""

from __future__ import annotations

import dataclasses

import numpy
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sparkpair.cache.extents import Extents
from sparkpair.cache.keeper import PoolKeeper
from sparkpair.cache.orders import Order
from sparkpair.grid import GRID

LOGITS = numpy.zeros((1, 4), dtype=numpy.float32)


class Rank:
    """A pool whose row is the token that stands there; -1 where nothing was written."""

    def __init__(self, tokens: int) -> None:
        self.rows = [-1] * tokens
        self.places: dict[int, tuple[int, int]] = {}
        self.slots: dict[int, int] = {}
        self.kept: set[int] = set()

    def carry_out(self, order: Order) -> None:
        name = order.name
        match order.kind:
            case "place":
                base = self.places[name][0] if name in self.places else order.base
                self.places[name] = (base, order.size)
            case "move":
                base, size = self.places[name]
                self.rows[order.base : order.base + order.rows] = self.rows[base : base + order.rows]
                self.places[name] = (order.base, size)
            case "copy":
                source, target = self.places[order.source][0], self.places[name][0]
                self.rows[target : target + order.rows] = self.rows[source : source + order.rows]
            case "free":
                del self.places[name]
            case "start":
                self.slots[name] = order.source
            case "resume":
                assert order.kept in self.kept
                self.slots[name] = order.source
            case "release":
                del self.slots[name]
            case "drop":
                self.kept.remove(order.name)

    def write(self, slot: int, tokens: list[int], start: int) -> None:
        base, size = self.places[self.slots[slot]]
        assert start + len(tokens) <= size
        self.rows[base + start : base + start + len(tokens)] = tokens

    def read(self, extent: int, count: int) -> list[int]:
        base, size = self.places[extent]
        assert count <= size
        return self.rows[base : base + count]


@dataclasses.dataclass
class Running:
    """A request: what it has, what is known of its prompt, and how long it may become."""

    history: list[int]
    prompt: int
    done: int
    most: int


def content(conversation: int, length: int) -> list[int]:
    """Conversations begin alike, in pairs, and then differ."""
    shared = [1000 * (conversation // 2) + at for at in range(100)]
    return [*shared, *(100_000 * (conversation + 1) + at for at in range(100, length))][:length]


class PoolMachine(RuleBasedStateMachine):
    """Requests of six conversations come, read, write and go, in a pool of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[int, Running] = {}
        self.kept: dict[int, tuple[int, list[int]]] = {}
        self.lengths = dict.fromkeys(range(6), 120)
        self.slots = 0

    @initialize(blocks=st.integers(10, 60), entries=st.integers(0, 20))
    def begin(self, blocks: int, entries: int) -> None:
        self.keeper = PoolKeeper(blocks * GRID, most_kept=entries, unit=GRID)
        self.rank = Rank(blocks * GRID)

    def follow(self) -> None:
        for order in self.keeper.take_orders():
            self.rank.carry_out(order)
        self.kept = {name: kept for name, kept in self.kept.items() if name in self.rank.kept}

    @rule(conversation=st.integers(0, 5), more=st.integers(0, 150), reply=st.integers(1, 200))
    def request(self, conversation: int, more: int, reply: int) -> None:
        length = self.lengths[conversation] + more
        if not self.keeper.fits(length + reply):
            return
        self.lengths[conversation] = length if length < 500 else 120
        tokens = content(conversation, length)
        self.slots += 1
        entry = self.keeper.begin(self.slots, tokens, length + reply)
        done = 0 if entry is None else len(entry.tokens)
        self.follow()
        # What the entry held itself is written back when it is resumed.
        whole = done // GRID * GRID
        self.rank.write(self.slots, tokens[whole:done], whole)
        assert self.rank.read(self.rank.slots[self.slots], done) == tokens[:done]
        self.running[self.slots] = Running(tokens, length, done, length + reply)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), rows=st.integers(1, 90))
    def step(self, data: st.DataObject, rows: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.running)))
        request = self.running[slot]
        reading = request.done < request.prompt
        # A prompt is read to a block's end, or to its own; a reply grows by whatever was right.
        end = min((request.done + rows) // GRID * GRID + GRID, request.prompt) if reading else request.done + rows
        end = min(end, request.most)
        request.history += [-slot * 10_000 - at for at in range(len(request.history), end)]
        if not reading:
            self.keeper.need(slot, end)
        if reading and (end % GRID == 0 or end == request.prompt):
            self.keeper.keep(slot, request.history[:end])
        keeping = self.keeper.take_keeping()
        self.follow()
        self.rank.write(slot, request.history[request.done : end], request.done)
        request.done = end
        for name in keeping.values():
            self.rank.kept.add(name)
            self.kept[name] = (self.rank.slots[slot], request.history[: end // GRID * GRID])
            if end == request.prompt:
                self.keeper.complete(name, LOGITS)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[slot]
        self.keeper.release(slot)

    @invariant()
    def everybody_has_the_rows_that_were_written(self) -> None:
        if not hasattr(self, "keeper"):
            return
        self.follow()
        for slot, request in self.running.items():
            assert self.rank.read(self.rank.slots[slot], request.done) == request.history[: request.done]
        for extent, rows in self.kept.values():
            assert self.rank.read(extent, len(rows)) == rows
        assert self.keeper.kept_count == len(self.kept)

    @invariant()
    def extents_lie_in_the_pool_apart_from_each_other(self) -> None:
        if not hasattr(self, "keeper"):
            return
        places = sorted(self.rank.places.values())
        ends = [base + size for base, size in places]
        assert all(end <= base for end, (base, _) in zip(ends, places[1:], strict=False))
        assert not ends or ends[-1] <= self.keeper.tokens
        assert self.keeper.free_tokens == self.keeper.tokens - sum(size for _, size in places)


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestPool = PoolMachine.TestCase


def finish(keeper: PoolKeeper, slot: int, tokens: list[int], reply: int = 10) -> int:
    """Run a request to its end: the tokens that it did not have to read."""
    entry = keeper.begin(slot, tokens, len(tokens) + reply)
    cached = 0 if entry is None else len(entry.tokens)
    for length in ((len(tokens) - 1) // GRID * GRID, len(tokens)):
        if length > cached:
            keeper.keep(slot, tokens[:length])
            for name in keeper.take_keeping().values():
                if length == len(tokens):
                    keeper.complete(name, LOGITS)
    keeper.need(slot, len(tokens) + reply)
    keeper.release(slot)
    return cached


def test_three_conversations_that_take_turns_in_a_pool_for_ten_resume_nearly_everything() -> None:
    keeper = PoolKeeper(10 * 4608, most_kept=32, unit=GRID)
    slot = 0
    for turn in range(8):
        for conversation in range(3):
            slot += 1
            tokens = [conversation, *range(4500 + 40 * turn)]
            cached = finish(keeper, slot, tokens)
            assert turn == 0 or cached / len(tokens) >= 0.95


def test_a_lone_conversation_fills_the_pool_and_grows_in_its_own_rows() -> None:
    keeper = PoolKeeper(64 * GRID, most_kept=8, unit=GRID)
    for turn in range(9):
        tokens = list(range(400 * (turn + 1)))
        cached = finish(keeper, turn, tokens)
        assert cached == 0 if turn == 0 else cached >= 400 * turn - GRID
    assert "copy" not in {order.kind for order in keeper.take_orders()}


def test_free_room_in_pieces_is_gathered_before_anything_kept_goes() -> None:
    keeper = PoolKeeper(12 * GRID, most_kept=8, unit=GRID)
    # Six conversations of two blocks each fill the pool; those at 0, 2 and 4 keep nothing when they leave.
    for slot in range(6):
        tokens = [slot] * (2 * GRID - 10)
        keeper.begin(slot, tokens, 2 * GRID)
        if slot % 2:
            keeper.keep(slot, tokens[:GRID])
            keeper.take_keeping()
    for slot in range(6):
        keeper.release(slot)
    assert keeper.kept_count == 3
    assert keeper.free_tokens == 9 * GRID
    keeper.take_orders()
    keeper.begin(9, [9] * (9 * GRID), 9 * GRID)
    kinds = {order.kind for order in keeper.take_orders()}
    assert "move" in kinds
    assert "drop" not in kinds
    assert keeper.kept_count == 3


def test_a_shared_beginning_is_copied_while_its_owner_keeps_what_stands_behind_it() -> None:
    keeper = PoolKeeper(40 * GRID, most_kept=20, unit=GRID)
    system = list(range(5 * GRID))
    for conversation in range(4):
        finish(keeper, conversation, [*system, *[1000 + conversation] * 100])
    for conversation in range(4):
        cached = finish(keeper, 10 + conversation, [*system, *[1000 + conversation] * 200])
        assert cached == 5 * GRID + GRID


def test_what_stands_behind_a_shared_beginning_goes_where_the_pool_cannot_hold_both() -> None:
    keeper = PoolKeeper(10 * GRID, most_kept=20, unit=GRID)
    system = list(range(GRID))
    keeper.begin(1, system + [1] * 6 * GRID, 7 * GRID)
    keeper.keep(1, system)
    keeper.keep(1, system + [1] * 6 * GRID)
    keeper.take_keeping()
    keeper.release(1)
    assert keeper.free_tokens == 3 * GRID
    assert finish(keeper, 2, system + [2] * 4 * GRID) == GRID
    kinds = [order.kind for order in keeper.take_orders()]
    assert "copy" not in kinds
    assert kinds.count("drop") == 1
    assert finish(keeper, 3, system + [1] * 6 * GRID) == GRID


def test_the_state_that_is_resumed_never_goes_to_make_room_for_its_own_copy() -> None:
    keeper = PoolKeeper(5 * GRID, most_kept=20, unit=GRID)
    # A state at one block, superseded by one at two blocks whose logits nobody knows.
    tokens = list(range(3 * GRID))
    keeper.begin(1, tokens, 3 * GRID)
    keeper.keep(1, tokens[:GRID])
    keeper.keep(1, tokens[: 2 * GRID])
    keeper.take_keeping()
    keeper.release(1)
    finish(keeper, 2, [9] * (3 * GRID - 10))
    keeper.take_orders()
    entry = keeper.begin(3, tokens[: 2 * GRID], 3 * GRID)
    assert entry is not None
    orders = keeper.take_orders()
    assert entry.name not in {order.name for order in orders if order.kind == "drop"}
    assert orders[-1].kept == entry.name


def test_requests_run_together_only_while_the_pool_could_hold_all_of_them_in_full() -> None:
    keeper = PoolKeeper(10 * GRID, most_kept=8, unit=GRID)
    assert keeper.fits(10 * GRID)
    assert not keeper.fits(10 * GRID + 1)
    keeper.begin(1, [1] * 10, 6 * GRID)
    assert keeper.fits(4 * GRID)
    assert not keeper.fits(4 * GRID + 1)
    keeper.release(1)
    assert keeper.fits(10 * GRID)


def test_the_lowest_gap_is_taken_and_room_that_others_wish_for_is_left_as_long_as_possible() -> None:
    extents = Extents(10, 1)
    assert extents.find(2, 5) == 0
    extents.add(0, 2, 5)
    assert extents.find(2, 2) == 5
    extents.add(5, 4, 4)
    assert extents.find(2, 2) == 2
    assert extents.find(4, 4) is None


@pytest.mark.parametrize("name", ["first", "last"])
def test_gathering_puts_all_free_room_behind_the_one_that_grows(name: str) -> None:
    extents = Extents(20, 1)
    made = [extents.add(base, 2, 2) for base in (1, 6, 12, 17)]
    grows = made[0] if name == "first" else made[-1]
    extents.gather(grows)
    assert extents.room_behind(grows) == 12 == extents.free
