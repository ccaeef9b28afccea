# SPDX-License-Identifier: Apache-2.0
"""Small gathers over real verbs between two machines: right bytes on two rails, late and lost, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pair import layout, machines
from tests.pair.machines import Machine
from tests.pair.roce.starting import Gathering, bring, in_words, rails_of

HEAD, WORKER = layout.NAMES[:2]
# More than a test waits for.
ENDLESS = 10**9

Pair = dict[str, Machine]
# By machine: its devices, the link's own first, with the index of each one's GID.
Rails = dict[str, list[tuple[str, int]]]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """The machines that run, or two that run for these tests, with addresses on their cables."""
    with machines.found_or_running() as found:
        machines.give_addresses(found)
        for machine in found.values():
            bring(machine)
        yield found


@pytest.fixture(scope="module")
def rails(pair: Pair) -> Rails:
    """What the devices of each machine are."""
    return {name: rails_of(pair, name) for name in (HEAD, WORKER)}


class Ranks:
    """Both ranks, over all rails."""

    def __init__(self, pair: Pair, rails: Rails) -> None:
        self._pair = pair
        self._rails = rails
        self._port = 29600
        self.all: list[Gathering] = []

    def start(self, *, gathers: int, wait_s: float) -> tuple[Gathering, Gathering]:
        self._port += len(self.all) + 1
        for rank, name in enumerate((HEAD, WORKER)):
            rails = in_words(self._rails[name])
            self.all.append(Gathering(self._pair[name], rank, rails, gathers=gathers, wait_s=wait_s, port=self._port))
        return self.all[-2], self.all[-1]


@pytest.fixture
def ranks(pair: Pair, rails: Rails) -> Iterator[Ranks]:
    made = Ranks(pair, rails)
    yield made
    for rank in made.all:
        rank.close()


def test_parts_of_every_size_arrive_as_they_were_over_both_rails(ranks: Ranks) -> None:
    head, worker = ranks.start(gathers=210, wait_s=60)
    assert head.wait_for("gathers are right") == "all 210 gathers are right"
    assert (head.exit_code(), worker.exit_code()) == (0, 0)


def test_o02_a_stopped_rank_is_late_and_gathers_go_on_when_it_does(ranks: Ranks) -> None:
    head, worker = ranks.start(gathers=ENDLESS, wait_s=100)
    head.wait_for("gathers 50")
    worker.signal("STOP")
    assert f"late: rank 1 on {WORKER} in gather" in head.wait_for("its control channel is open")
    worker.signal("CONT")
    assert "late: gather " in head.wait_for("is whole after")
    before = len(head.lines)
    head.wait_for(f"gathers {50 * (sum('gathers' in line for line in head.lines[:before]) + 1)}")


def test_o02_a_rank_that_stays_stopped_is_lost_after_the_limit_and_named(ranks: Ranks) -> None:
    head, worker = ranks.start(gathers=ENDLESS, wait_s=7)
    head.wait_for("gathers 50")
    worker.signal("STOP")
    assert head.exit_code() == 4
    assert head.lines[-1].startswith(f"fatal: rank 1 on {WORKER} is lost: nothing came in gather ")
    for told in ("for 7 s", "no queue pair failed", "ACTIVE", "--roce-wait"):
        assert told in head.lines[-1]


def test_a_rail_that_is_cut_is_named_by_both_ranks(ranks: Ranks, pair: Pair) -> None:
    head, worker = ranks.start(gathers=ENDLESS, wait_s=100)
    head.wait_for("gathers 50")
    # The control channel is on the other rail, and stays.
    second = layout.wires(2)[1]
    pair[WORKER].run(f"sudo ip link set {second.second.port} down")
    try:
        assert (head.exit_code(), worker.exit_code()) == (4, 4)
    finally:
        pair[WORKER].run(f"sudo ip link set {second.second.port} up")
    # Whoever notices first names it; the other one may see only that the control channel has closed.
    named = [rank.lines[-1] for rank in (head, worker) if " is lost in gather " in rank.lines[-1]]
    assert named
    for line in named:
        assert any(device in line for device in ("roceP2p1s0f0", "roceP2p1s0f1"))
        assert "in one subnet and the same MTU" in line


def test_a_rank_that_dies_is_seen_at_once_by_its_control_channel(ranks: Ranks) -> None:
    head, worker = ranks.start(gathers=ENDLESS, wait_s=100)
    head.wait_for("gathers 50")
    worker.signal("KILL")
    assert head.exit_code() == 4
    assert head.lines[-1] == "fatal: a rank's control channel has closed"


@pytest.mark.parametrize(
    ("asked", "before", "told"),
    [
        ("rocep9s9f9:1", "", "no RDMA device rocep9s9f9; it has "),
        ("{device}:200", "", "the GID at index 200 is empty. RoCE v2 GIDs of "),
        ("{device}:{index}", "prlimit --memlock=65536", "may lock 64 KiB (RLIMIT_MEMLOCK). Set LimitMEMLOCK=infinity"),
    ],
)
def test_what_cannot_be_is_refused_with_code_2_and_what_to_do(
    pair: Pair, rails: Rails, asked: str, before: str, told: str
) -> None:
    device, index = rails[WORKER][0]
    rank = Gathering(
        pair[WORKER],
        1,
        asked.format(device=device, index=index),
        gathers=1,
        wait_s=5,
        port=29590,
        before=before,
    )
    assert rank.exit_code() == 2
    rank.close()
    assert rank.lines[-1].startswith("error: ")
    assert told in rank.lines[-1]
