# SPDX-License-Identifier: Apache-2.0
"""Both ranks or neither, three strikes, one owner: the supervisor's decisions in a world where anything happens."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _pair_decide as decide
from ansible_collections.sparkpair.serving.plugins.module_utils._pair_decide import HostSeen, Limits, Memory, Strike
from hypothesis import given, settings
from hypothesis import strategies as st

LIMITS = Limits(wait_s=30, lost_s=10, settled_s=100)
HOSTS = ("head", "worker")


@dataclasses.dataclass
class Host:
    """One host of the world as it is, which the supervisor sees only while it can be reached."""

    name: str
    boot: int = 0
    run: int = 0
    running: bool = False
    cause: str = ""
    lost_since: float | None = None
    refuses: str = ""
    lacks: tuple[str, ...] = ()

    def seen(self, now: float) -> HostSeen:
        if self.lost_since is not None:
            return HostSeen(self.name, lost_s=now - self.lost_since)
        known = {"running": self.running, "own": self.running, "identity": str(self.run) if self.running else ""}
        marks = {"cause": self.cause, "refuses": self.refuses, "lacks": self.lacks}
        return HostSeen(self.name, boot=str(self.boot), pair="p", **known, **marks)


class World:
    """Two hosts, the supervisor's memory, and what it did."""

    def __init__(self) -> None:
        self.now = 0.0
        self.hosts = {name: Host(name) for name in HOSTS}
        self.memory = Memory()
        self.paused = ""
        self.broken = False
        self.machines_only = True
        self.gave_up = False

    def step(self) -> None:
        """Have the supervisor look and act once, and check what must never happen."""
        self.now += 2
        seen = [host.seen(self.now) for host in self.hosts.values()]
        running = [host for host in self.hosts.values() if host.running]
        ready = len(running) == len(HOSTS) and not self.broken
        before = self.memory
        made = decide.decide(before, seen, ready, self.paused, self.now, "now", LIMITS)
        self.memory = made.memory
        if self.paused:
            assert made.action == decide.LET_GO
        if made.action == decide.START:
            assert not running or all(host.lost_since is not None for host in running)
            assert not any(host.refuses or host.lacks or host.lost_since is not None for host in self.hosts.values())
            assert not decide.struck_out(before)
            for host in self.hosts.values():
                host.run, host.running, host.cause = host.run + 1, True, ""
            if self.broken:
                self.end("worker")
        elif made.action == decide.STOP:
            for host in self.hosts.values():
                if host.lost_since is None:
                    host.running, host.cause = False, ""
        elif made.action == decide.GIVE_UP:
            assert decide.struck_out(before)
            self.gave_up = True

    def end(self, name: str) -> None:
        """A rank ends by itself, and the other for its sake."""
        if self.hosts[name].running:
            self.machines_only = False
        for host in self.hosts.values():
            if host.running:
                host.running = False
                host.cause = f"{host.name} ended" if host.name == name else "fatal: the other left"

    def power_cut(self, name: str) -> None:
        """A machine is gone with its rank, and the other rank notices."""
        host = self.hosts[name]
        host.running, host.cause, host.lost_since = False, "", self.now
        for other in self.hosts.values():
            if other is not host and other.running:
                other.running, other.cause = False, "fatal: the other left"

    def power_on(self, name: str) -> None:
        """A machine is there again after a power cut."""
        host = self.hosts[name]
        if host.lost_since is not None:
            host.boot, host.lost_since = host.boot + 1, None

    def heal(self) -> None:
        """Everything is well from now on, and nobody wants anything."""
        self.paused, self.broken = "", False
        for name, host in self.hosts.items():
            self.power_on(name)
            host.refuses, host.lacks = "", ()


EVENTS: dict[str, Any] = {
    "nothing": lambda world: None,
    "time passes": lambda world: setattr(world, "now", world.now + 40),
    "rank 1 ends": lambda world: world.end("worker"),
    "rank 0 ends": lambda world: world.end("head"),
    "starts fail": lambda world: (setattr(world, "broken", True), setattr(world, "machines_only", False)),
    "starts go well": lambda world: setattr(world, "broken", False),
    "worker cut": lambda world: world.power_cut("worker"),
    "worker on": lambda world: world.power_on("worker"),
    "playbook": lambda world: setattr(world, "paused", "site.yml has the ranks"),
    "playbook ends": lambda world: setattr(world, "paused", ""),
    "stop": lambda world: setattr(world.hosts["worker"], "refuses", "was stopped"),
    "start": lambda world: setattr(world.hosts["worker"], "refuses", ""),
    "address gone": lambda world: setattr(world.hosts["head"], "lacks", ("no address yet",)),
    "address there": lambda world: setattr(world.hosts["head"], "lacks", ()),
    "half by hand": lambda world: setattr(world.hosts["head"], "running", True),
}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(sorted(EVENTS)), min_size=15, max_size=40))
def test_o05_o06_whatever_happens_both_ranks_serve_in_the_end_or_neither_runs(events: list[str]) -> None:
    world = World()
    for event in events:
        EVENTS[event](world)
        world.step()
        if world.gave_up:
            break
    if not world.gave_up:
        world.heal()
        for _ in range(12):
            world.step()
            if world.gave_up:
                break
    running = [host.running for host in world.hosts.values()]
    if world.gave_up:
        assert running == [False, False] or "half by hand" in events or world.hosts["worker"].lost_since is not None
        assert not world.machines_only
    else:
        assert running == [True, True]
        assert world.memory.phase == decide.SERVING


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["nothing", "time passes", "worker cut", "worker on", "stop", "start"]), max_size=60))
def test_what_machines_and_people_do_is_no_strike(events: list[str]) -> None:
    world = World()
    for event in events:
        EVENTS[event](world)
        world.step()
        assert world.memory.strikes == ()


def seen(**worker: Any) -> list[HostSeen]:
    """A head and a worker whose ranks run, with the worker changed."""
    up = HostSeen("head", boot="b", running=True, own=True, identity="1", pair="p")
    return [up, dataclasses.replace(up, **{"host": "worker", **worker})]


UP = Memory(decide.SERVING, 0.0, dict.fromkeys(HOSTS, "1"), dict.fromkeys(HOSTS, "b"))


@pytest.mark.parametrize(
    ("worker", "action", "words", "strikes"),
    [
        ({}, decide.WAIT, "serves", 0),
        ({"running": False, "cause": "rank1 ended"}, decide.STOP, "stops: worker: rank1 ended", 1),
        ({"identity": "2"}, decide.STOP, "somebody has started the rank anew", 1),
        ({"boot": "c", "running": False}, decide.STOP, "worker was restarted", 0),
        ({"refuses": "goes down"}, decide.STOP, "worker goes down", 0),
        ({"lost_s": 9.0}, decide.WAIT, "worker does not answer", 0),
        ({"lost_s": 10.0}, decide.STOP, "worker does not answer", 0),
    ],
)
def test_a_serving_pair_is_left_alone_until_one_of_its_ranks_or_hosts_is_not_what_it_was(
    worker: dict[str, Any], action: str, words: str, strikes: int
) -> None:
    made = decide.decide(UP, seen(**worker), False, "", 5.0, "now", LIMITS)
    assert made.action == action
    assert words in made.words
    assert len(made.memory.strikes) == strikes


def test_the_rank_that_ended_for_its_own_sake_is_named_and_not_the_one_that_followed() -> None:
    both = [dataclasses.replace(one, running=False) for one in seen(cause="rank1 ended: error: no memory")]
    both[0] = dataclasses.replace(both[0], cause="fatal: rank 1 left")
    made = decide.decide(UP, both, False, "", 5.0, "now", LIMITS)
    assert made.memory.strikes == (Strike("now", "worker: rank1 ended: error: no memory"),)


def test_a_rank_that_ends_as_a_machine_falls_silent_is_judged_when_that_is_known_to_be_lost() -> None:
    fallen = [dataclasses.replace(seen()[0], running=False, cause="fatal: rank 1 left"), HostSeen("worker", lost_s=1.0)]
    open_ = decide.decide(UP, fallen, False, "", 5.0, "now", LIMITS)
    assert (open_.action, open_.memory) == (decide.WAIT, UP)
    lost = decide.decide(UP, [fallen[0], HostSeen("worker", lost_s=10.0)], False, "", 5.0, "now", LIMITS)
    assert (lost.action, lost.memory.strikes) == (decide.STOP, ())


def test_a_start_that_does_not_answer_in_time_is_a_strike_and_a_long_service_forgives_it() -> None:
    starting = dataclasses.replace(UP, phase=decide.STARTING)
    late = decide.decide(starting, seen(), False, "", 30.0, "now", LIMITS)
    assert (late.action, len(late.memory.strikes)) == (decide.STOP, 1)
    struck = dataclasses.replace(UP, strikes=(Strike("then", "why"),))
    assert decide.decide(struck, seen(), False, "", 99.0, "now", LIMITS).memory.strikes
    assert not decide.decide(struck, seen(), False, "", 100.0, "now", LIMITS).memory.strikes


def test_ranks_of_another_start_are_kept_while_they_serve_and_replaced_when_they_do_not() -> None:
    other = [dataclasses.replace(one, own=False) for one in seen()]
    assert decide.decide(Memory(), other, True, "", 5.0, "now", LIMITS).memory.phase == decide.SERVING
    assert decide.decide(Memory(), other, False, "", 5.0, "now", LIMITS).action == decide.STOP


def test_records_of_two_different_pairs_are_no_pair_to_start() -> None:
    down = [dataclasses.replace(one, running=False) for one in seen(pair="q")]
    made = decide.decide(Memory(), down, False, "", 5.0, "now", LIMITS)
    assert (made.action, "run site.yml" in made.words) == (decide.WAIT, True)


def test_a_host_that_does_not_answer_is_named_while_the_pair_waits_for_it() -> None:
    down = [dataclasses.replace(seen()[0], running=False), HostSeen("worker", lost_s=99.0)]
    assert decide.decide(Memory(), down, False, "", 5.0, "now", LIMITS).words == "waits: worker does not answer"


def test_three_failed_starts_are_the_last_and_the_cause_of_the_last_is_told() -> None:
    world = World()
    world.broken = True
    while not world.gave_up and world.now < 100:
        world.step()
    assert world.gave_up
    assert [host.run for host in world.hosts.values()] == [3, 3]
    made = decide.decide(world.memory, [one.seen(0) for one in world.hosts.values()], False, "", 5.0, "now", LIMITS)
    assert made.words == "stays down after 3 failed starts, the last: worker: worker ended"
