# SPDX-License-Identifier: Apache-2.0
"""Whether a world of ranks is live, lost or still loading, and how that is told: await_live but for the waiting.

Pure functions over sightings, one a rank, as the instances of await_live share them. Private to the
collection, may change at any time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import signal_name

GIB = 2**30
LIVE, LOST, TIMED_OUT = "live", "lost", "timed out"


@dataclasses.dataclass(frozen=True)
class Sighting:
    """One rank as its host was last seen.

    `trouble` is set when the host could not be asked, and says why. `ready` is True for rank 0 when its
    server answers and its log says that it serves. `verdict` is what the rank's instance has decided, None
    while it waits; `final` that it will not look again. `info` is the result of rank_process_info or
    rank_container_info. `decision` is what rank 0 does after a start that failed.
    """

    rank: int
    host: str
    trouble: str = ""
    ready: bool = False
    verdict: str | None = None
    final: bool = False
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    decision: dict[str, Any] | None = None

    @property
    def lost(self) -> bool:
        """Whether this rank can no longer become live."""
        return bool(self.trouble) or not self.info.get("running")

    @property
    def label(self) -> str:
        """The rank and its host, for messages."""
        return f"rank {self.rank} on {self.host}"

    @property
    def lines(self) -> list[str]:
        """The last lines of its log."""
        return self.info.get("last_lines", [])

    def anchor(self, name: str) -> Any:
        """Return what the log says about `name`, None when it says nothing. See `parse_anchors`."""
        return self.info.get("anchors", {}).get(name)


def judge(seen: Sequence[Sighting]) -> str | None:
    """Return LIVE, LOST or TIMED_OUT as soon as one of them is certain, else None.

    A rank nobody has seen yet counts for nothing: its host's turn may come after this one. Rank 0 is ready
    only when all ranks have joined it.
    """
    if any(one.lost or one.verdict == LOST for one in seen):
        return LOST
    leader = next((one for one in seen if one.rank == 0), None)
    if leader is None:
        return None
    if leader.ready or leader.verdict == LIVE:
        return LIVE
    return TIMED_OUT if leader.verdict == TIMED_OUT else None


def doing(one: Sighting) -> str:
    """Return what a rank is doing or how it ended, in a few words without ever-changing figures."""
    if one.trouble:
        return "cannot be asked"
    if not one.info.get("exists"):
        return "never started"
    if not one.info.get("running"):
        return str(one.info.get("state"))
    if one.ready:
        return "serving"
    if (ready_s := one.anchor("ready_s")) is not None:
        return f"ready after {ready_s:g} s"
    return str(one.anchor("loading") or "starting")


def progress(elapsed_s: float, seen: Sequence[Sighting], world_size: int) -> str:
    """Return one line about all ranks: what each does, and its memory against its own estimate."""
    parts = []
    for one in seen:
        part = f"{one.label}: {doing(one)}"
        if one.info.get("running"):
            on_gpu = one.info.get("gpu_bytes")
            # What an engine on a GPU estimates is what it takes there, which no process has among its own pages.
            held = one.info.get("rss_bytes", 0) if on_gpu is None else on_gpu
            part += f", {held / GIB:.2f} GiB" + ("" if on_gpu is None else " on the GPU")
            if (estimate := one.anchor("estimate_gib")) is not None:
                part += f" of {estimate:.2f} estimated"
        parts.append(part)
    parts += [f"rank {rank}: not looked at yet" for rank in unseen(seen, world_size)]
    return f"{elapsed_s:5.0f} s  " + " | ".join(parts)


def over_sockets(seen: Sequence[Sighting]) -> list[Sighting]:
    """Return the ranks whose log says that NCCL talks TCP although RDMA was configured."""
    return [one for one in seen if one.anchor("transport") == "socket"]


def fallen_back(slow: Sequence[Sighting]) -> str:
    """Return the message for live ranks that talk at half the speed or less, and would never say so."""
    where = ", ".join(one.label for one in slow)
    return (
        f"The ranks are live, but NCCL fell back to TCP sockets on {where}: the log says NET/Socket where NET/IB is "
        "wanted. They were left running, at about half the speed. What to do: see that the devices of NCCL_IB_HCA "
        "exist there and their ports are ACTIVE (`ibv_devinfo`), then restart; sparkpair_link: tcp says that TCP is "
        "meant."
    )


def unseen(seen: Sequence[Sighting], world_size: int) -> list[int]:
    """Return the ranks of the world that nobody has looked at yet."""
    return sorted(set(range(world_size)) - {one.rank for one in seen})


def first_to_end(seen: Sequence[Sighting]) -> Sighting | None:
    """Return the rank whose end is the cause: the one that others name, else one that ended for no peer."""
    ended = [one for one in seen if one.lost]
    named = {
        int(match[1])
        for one in seen
        for line in one.anchor("fatals") or []
        if (match := re.search(r"\brank (\d+)\b", line)) and int(match[1]) != one.rank
    }

    def order(one: Sighting) -> tuple[bool, bool, str, int]:
        return (
            one.rank not in named,
            one.info.get("exit_code") == 4,
            one.info.get("ended_at") or "",
            one.rank,
        )

    return min(ended, key=order, default=None)


def failure(seen: Sequence[Sighting], world_size: int, updates: Mapping[str, str]) -> str:
    """Return the message for a world that has lost a rank: the cause first, every rank's last lines, the remedies.

    `updates` says by host what an update has changed there since the last good start, a sentence's rest each; it is
    told before everything else.
    """
    first = first_to_end(seen)
    what = f"{first.label} {_ending(first)}" if first else "a rank was lost"
    others = [f"{one.label} {_ending(one)}" for one in seen if one is not first]
    others += [f"rank {rank} was not looked at yet" for rank in unseen(seen, world_size)]
    return "\n".join(
        [
            *_updated(updates),
            f"The ranks are not live: {'; '.join([what, *others])}.",
            *_evidence(seen),
            *(f"What to do: {remedy}" for remedy in remedies(seen)),
        ]
    )


def timeout(elapsed_s: float, seen: Sequence[Sighting], world_size: int, updates: Mapping[str, str]) -> str:
    """Return the message for a world that is not live in time: updates, what each rank does, its last lines."""
    doings = [f"{one.label}: {doing(one)}" for one in seen]
    doings += [f"rank {rank}: not looked at yet" for rank in unseen(seen, world_size)]
    return "\n".join(
        [
            *_updated(updates),
            f"The ranks are not live after {elapsed_s:.0f} s and were left running. {'; '.join(doings)}.",
            *_evidence(seen),
            "What to do: wait with a longer timeout (sparkpair_wait_timeout) if they still load; look at "
            "their logs "
            "if nothing moves.",
        ]
    )


def _updated(updates: Mapping[str, str]) -> list[str]:
    """Return the heading of a failure after an update, which is the first thing to suspect; empty without one."""
    words = "; ".join(f"on {host} {found}" for host, found in updates.items())
    return [f"The start failed, and {words}."] if updates else []


def _ending(one: Sighting) -> str:
    """Return how a rank is, as the rest of a sentence that begins with its label."""
    if one.trouble:
        return f"cannot be asked ({one.trouble})"
    if not one.info.get("exists"):
        return "was never started"
    if one.info.get("running"):
        return "still runs"
    if (number := one.info.get("exit_signal")) is not None:
        return f"was ended by {signal_name(number)}"
    return str(one.info.get("state"))


def _evidence(seen: Sequence[Sighting]) -> list[str]:
    text = []
    for one in seen:
        if one.trouble:
            continue
        text.append(f"Last lines of {one.label} ({one.info.get('log')}):" + ("" if one.lines else " none"))
        text += [f"    {line}" for line in one.lines]
    return text


@dataclasses.dataclass(frozen=True)
class _Remedy:
    """What to do when a line of a rank's log matches.

    `advice` may name `{host}` and groups of the pattern.
    """

    pattern: str
    advice: str


# A line is explained by the first that matches: memory that RDMA cannot register is not memory that has run out.
_BY_LINE = (
    _Remedy(
        r"ibv_reg_mr",
        "RDMA could not register memory on {host}, and not for want of it. preflight.yml says whether the kernel "
        "there has the known fault (CmaFree above CmaTotal) and what helps; else boot the kernel that worked before, "
        "or update the board's firmware.",
    ),
    _Remedy(
        r"(?i)transport retry|vendor[ _]err\w* (?:0x)?81\b",
        "what {host} sent over RDMA never arrived. See that both ends of every rail have the same MTU and a cable "
        "(preflight.yml tries them); sparkpair_rails: 1 leaves every rail but the first out.",
    ),
    _Remedy(
        r"largest fitting prompt-plus-reply window: (?P<window>\d+) tokens",
        "the window does not fit on {host}. Set sparkpair_context to {window} or less, or free memory there.",
    ),
    _Remedy(
        r"(?i)\b(?:port \d+|address)\b.*\b(?:taken|already in use)\b",
        "another program has the port on {host}. `ss -ltnp` there shows it: stop it, or set sparkpair_port "
        "(sparkpair_master_port for the ranks' own) to a free one.",
    ),
    _Remedy(
        r"(?i)no space left on device",
        "a disk of {host} is full. `df -h` there shows which: free some space, then run again.",
    ),
    _Remedy(
        r"(?i)out of memory|cannot allocate memory|MemoryError",
        "memory ran out on {host}. Stop other programs there, or set a smaller sparkpair_context.",
    ),
    _Remedy(
        r"No module named '?(?P<module>[\w.]+)",
        "the Python that runs the rank on {host} lacks {module}. Install the engine for it, or set "
        "sparkpair_engine_command to one that has it.",
    ),
)


def _killed(one: Sighting) -> str | None:
    if one.info.get("exit_signal") != 9:
        return None
    return (
        f"{one.label} was killed from outside. If nobody did it, the kernel did for want of memory: "
        f"`journalctl -k | grep -i oom` on {one.host} says so. Stop other programs there, or set a smaller "
        "sparkpair_context."
    )


def _unreachable(one: Sighting) -> str | None:
    if not one.trouble:
        return None
    return f"look at {one.host} and the way to it; its rank may still run. Then run again."


def _never_started(one: Sighting) -> str | None:
    if one.trouble or one.info.get("exists"):
        return None
    return f"start {one.label} first: nothing in {one.info.get('log')} or beside it tells of one."


def _peer_lost(one: Sighting) -> str | None:
    if one.info.get("exit_code") != 4 or not one.anchor("fatals"):
        return None
    return f"{one.label} ended for another rank's sake ({one.anchor('fatals')[-1]}); that rank's lines say why."


_BY_STATE: tuple[Callable[[Sighting], str | None], ...] = (_killed, _unreachable, _never_started, _peer_lost)


def remedies(seen: Sequence[Sighting]) -> list[str]:
    """Return what can be done about a loss, for every cause that is known, each once."""
    found = []
    for one in seen:
        matched: dict[_Remedy, re.Match[str]] = {}
        for line in one.lines:
            for remedy in _BY_LINE:
                if match := re.search(remedy.pattern, line):
                    matched[remedy] = match
                    break
        found += [
            remedy.advice.format(host=one.host, **matched[remedy].groupdict())
            for remedy in _BY_LINE
            if remedy in matched
        ]
        found += [advice for by_state in _BY_STATE if (advice := by_state(one))]
    return list(dict.fromkeys(found))


def fitting_window(seen: Sequence[Sighting]) -> int | None:
    """Return the largest window that fits on every rank that named one, in tokens, None when none did."""
    return min(
        (one.anchor("fitting_window_tokens") for one in seen if one.anchor("fitting_window_tokens")),
        default=None,
    )
