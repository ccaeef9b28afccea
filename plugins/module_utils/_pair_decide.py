# SPDX-License-Identifier: Apache-2.0
"""What the pair's supervisor does next, from what it sees of all hosts and what it remembers: both ranks or neither.

Pure: time comes in as a number, and somebody else looks and acts. A failed start, or a rank that ends by itself, is a
strike; after three without a quiet time in between nothing is started any more. What a machine or a person does (a
reboot, a lost host, a stop by hand) brings the pair down as well and is no strike. Private to the collection, may
change at any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

DOWN, STARTING, SERVING = "down", "starting", "serving"
# What is to be done: nothing, leave everything to a playbook, start all ranks, stop what runs, stay down for good.
WAIT, LET_GO, START, STOP, GIVE_UP = "wait", "let go", "start", "stop", "give up"
STRIKES = 3


@dataclasses.dataclass(frozen=True)
class HostSeen:
    """One host at one moment.

    `lost_s` is for how long it has not answered, None while it does. `running` says that its rank runs, `own` that it
    is the recorded start, `identity` which run of it. `cause` says how a rank that is there has ended, `refuses` why
    nothing is to run there, `lacks` what a start there waits for. `pair` names the recorded start of all ranks.
    """

    host: str
    lost_s: float | None = None
    boot: str = ""
    running: bool = False
    own: bool = False
    identity: str = ""
    cause: str = ""
    refuses: str = ""
    lacks: tuple[str, ...] = ()
    pair: str = ""


@dataclasses.dataclass(frozen=True)
class Strike:
    """One start that failed, or one run that ended by itself: when, in UTC for people, and why."""

    at: str
    cause: str


@dataclasses.dataclass(frozen=True)
class Memory:
    """What is remembered from one look to the next.

    `begun` is when the phase began, on the clock of `decide`; `identities` and `boots` are what ran then, by host.
    """

    phase: str = DOWN
    begun: float = 0.0
    identities: Mapping[str, str] = dataclasses.field(default_factory=dict)
    boots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    strikes: tuple[Strike, ...] = ()


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds: for a start to answer, until a silent host counts as lost, and of service that forgive the strikes."""

    wait_s: float
    lost_s: float
    settled_s: float


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do, what to remember, and both in words."""

    action: str
    memory: Memory
    words: str


def decide(
    memory: Memory, hosts: Sequence[HostSeen], ready: bool, paused: str, now: float, wall: str, limits: Limits
) -> Decision:
    """Return what to do next. `hosts` is in rank order; `paused` names the playbook that has the pair, if one has.

    `ready` says that the API answers. `now` is a clock that only grows, `wall` the time for people.
    """
    if paused:
        # Whatever the playbook leaves is looked at anew.
        return Decision(LET_GO, _down(memory, now), f"paused: {paused}")
    if memory.phase == DOWN:
        return _from_below(memory, hosts, ready, now)
    return _while_up(memory, hosts, ready, now, wall, limits)


def failed_start(memory: Memory, cause: str, now: float, wall: str) -> Memory:
    """Return what is remembered when the start itself could not be made."""
    return _down(memory, now, Strike(wall, cause))


def forgiven(memory: Memory) -> Memory:
    """Return the memory without its strikes."""
    return dataclasses.replace(memory, strikes=())


def struck_out(memory: Memory) -> bool:
    """Say whether nothing is started any more until somebody says so."""
    return len(memory.strikes) >= STRIKES


def _from_below(memory: Memory, hosts: Sequence[HostSeen], ready: bool, now: float) -> Decision:
    up = [one for one in hosts if one.running]
    refused = [f"{one.host} {one.refuses}" for one in hosts if one.refuses]
    if len(up) == len(hosts) and not refused and (ready or all(one.own for one in hosts)):
        identities = {one.host: one.identity for one in hosts}
        adopted = _up(memory, SERVING if ready else STARTING, hosts, identities, now)
        return Decision(WAIT, adopted, "serves" if ready else "starts")
    if up:
        told = " and ".join(one.host for one in up)
        return Decision(STOP, memory, f"stops what runs without the others, on {told}")
    if struck_out(memory):
        last = memory.strikes[-1].cause
        return Decision(GIVE_UP, memory, f"stays down after {len(memory.strikes)} failed starts, the last: {last}")
    lost = [f"{one.host} does not answer" for one in hosts if one.lost_s is not None]
    answering = [one for one in hosts if one.lost_s is None]
    lacking = [f"{one.host}: {text}" for one in answering for text in one.lacks]
    waits = refused + lost + lacking
    if not waits and len({one.pair for one in hosts}) > 1:
        waits = ["the hosts' last good starts are not of one pair: run site.yml"]
    if waits:
        return Decision(WAIT, memory, f"waits: {'; '.join(waits)}")
    return Decision(START, _up(memory, STARTING, hosts, {}, now), "starts")


def _while_up(
    memory: Memory, hosts: Sequence[HostSeen], ready: bool, now: float, wall: str, limits: Limits
) -> Decision:
    refused = [f"{one.host} {one.refuses}" for one in hosts if one.refuses]
    rebooted = [
        f"{one.host} was restarted" for one in hosts if one.lost_s is None and one.boot != memory.boots[one.host]
    ]
    silent = [one for one in hosts if one.lost_s is not None]
    lost = [f"{one.host} does not answer" for one in silent if (one.lost_s or 0.0) >= limits.lost_s]
    if refused or rebooted or lost:
        return Decision(STOP, _down(memory, now), f"stops: {'; '.join(refused + rebooted + lost)}")
    ended = _ended(memory, hosts)
    if silent and ended:
        # Whether the rank ended for the sake of a lost machine is known when that has come back or stays away.
        return Decision(WAIT, memory, f"waits: {silent[0].host} does not answer, and {ended}")
    if ended:
        return Decision(STOP, _down(memory, now, Strike(wall, ended)), f"stops: {ended}")
    if silent:
        return Decision(WAIT, memory, f"{memory.phase}, and {silent[0].host} does not answer")
    identities = memory.identities or {one.host: one.identity for one in hosts}
    memory = dataclasses.replace(memory, identities=identities)
    if memory.phase == STARTING and ready:
        return Decision(WAIT, dataclasses.replace(memory, phase=SERVING, begun=now), "serves")
    if memory.phase == STARTING and now - memory.begun >= limits.wait_s:
        cause = f"the API did not answer within {limits.wait_s:g} s"
        return Decision(STOP, _down(memory, now, Strike(wall, cause)), f"stops: {cause}")
    if memory.phase == SERVING and memory.strikes and now - memory.begun >= limits.settled_s:
        memory = forgiven(memory)
    return Decision(WAIT, memory, "serves" if memory.phase == SERVING else "starts")


def _ended(memory: Memory, hosts: Sequence[HostSeen]) -> str:
    """Return why the run is over, empty while it is not: the rank that ended first for its own sake has the word."""
    causes = []
    for one in hosts:
        if one.lost_s is not None:
            continue
        if not one.running:
            causes.append(f"{one.host}: {one.cause or 'the rank is gone'}")
        elif memory.identities and one.identity != memory.identities[one.host]:
            # A rank that was restarted alone cannot join the others.
            causes.append(f"{one.host}: somebody has started the rank anew")
    own = [cause for cause in causes if ": fatal: " not in cause]
    return (own or causes or [""])[0]


def _up(memory: Memory, phase: str, hosts: Sequence[HostSeen], identities: Mapping[str, str], now: float) -> Memory:
    boots = {one.host: one.boot for one in hosts}
    return dataclasses.replace(memory, phase=phase, begun=now, identities=identities, boots=boots)


def _down(memory: Memory, now: float, *strikes: Strike) -> Memory:
    return Memory(phase=DOWN, begun=now, strikes=(*memory.strikes, *strikes))
