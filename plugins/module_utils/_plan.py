# SPDX-License-Identifier: Apache-2.0
"""The plan of a pair: which host is which rank, under which address and name, and on which ports.

Pure: everything that is read from hosts comes in as data. Private to the collection, may change at any time.
"""

from __future__ import annotations

import difflib
import os.path
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._mistakes import Mistake

MINIATURE_NAME = "GLM-5.3-Flash-miniature"
PREFERRED_PORT = 8888
PREFERRED_MASTER_PORT = 29551
# Where the search for a free port begins. Away from the preferred ones, where a user's own servers usually
# sit.
FIRST_SPARE_PORT = 18888
FIRST_SPARE_MASTER_PORT = 29552


@dataclass(frozen=True)
class Ports:
    """The two ports on the head, and whether they differ from what its state directory remembers."""

    port: int
    master_port: int
    to_remember: bool


def world(groups: Mapping[str, Sequence[str]]) -> tuple[list[str], list[Mistake]]:
    """Return the hosts in rank order (the head, then the workers in inventory order) and what is wrong with
    the groups.
    """
    head, workers, sparks = (list(groups.get(name, ())) for name in ("head", "workers", "sparks"))
    mistakes = []
    if len(head) != 1:
        found = (
            f"it has {', '.join(head)}; move the others to workers" if head else f"it has none{_near(groups, 'head')}"
        )
        mistakes.append(Mistake("inventory group head", f"it needs exactly one host, the API's, and {found}"))
    elif not workers and _near(groups, "workers"):
        mistakes.append(Mistake("inventory group workers", f"it has no host{_near(groups, 'workers')}"))
    hosts = head[:1] + [name for name in workers if name not in head[:1]]
    for name in workers:
        if name in head:
            problem = f"host {name} is in the group head too; a host is one rank, so remove it from one of them"
            mistakes.append(Mistake("inventory group workers", problem))
    for name in sparks:
        if name not in head and name not in workers:
            problem = f"host {name} is neither in its child head nor in its child workers, so it has no rank"
            mistakes.append(Mistake("inventory group sparks", problem))
    for name in hosts:
        if name not in sparks:
            problem = f"host {name} is missing; make head and workers children of the group sparks"
            mistakes.append(Mistake("inventory group sparks", problem))
    return hosts, mistakes


def _near(groups: Mapping[str, Sequence[str]], wanted: str) -> str:
    """Return in words a group that has hosts and that somebody may have meant for the one `wanted`, empty without."""
    named = [name for name, members in groups.items() if members and name not in ("head", "workers", "sparks")]
    near = difflib.get_close_matches(wanted, named, n=1, cutoff=0.7)
    return f"; the group {near[0]} has {', '.join(groups[near[0]])}: rename it if {wanted} is meant" if near else ""


def absent_from_run(hosts: Iterable[str], in_play: Collection[str]) -> list[Mistake]:
    """Return a mistake for the hosts of the world that this run leaves out: a pair comes up whole or not at
    all.
    """
    missing = [host for host in hosts if host not in in_play]
    if not missing:
        return []
    problem = f"this run leaves out {', '.join(missing)}, and all ranks start together; run it without --limit"
    return [Mistake("hosts of this run", problem)]


def served_name(settings: Mapping[str, Any]) -> str:
    """Return the model id of the API: what was set, else the checkpoint directory's name, else the
    miniature's.
    """
    if settings["served_name"]:
        return str(settings["served_name"])
    return os.path.basename(str(settings["model"]).rstrip("/")) or MINIATURE_NAME


def build(
    hosts: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
    connections: Mapping[str, str],
    users: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the plan that all hosts share.

    `hosts` is in rank order; `settings` and `connections` hold by host the effective settings and the address
    that Ansible uses, `users` the account where it is not the head's own. The plan has `engine`, `runtime`,
    `world_size`, `one_machine` (all ranks on loopback addresses) and `ranks`, each with `rank`, `host`, `name`,
    `address` (on the link), `connection` and `login`, by which the head reaches the host with ssh.
    """
    users = users or {}
    first = settings[hosts[0]]
    return {
        "engine": first["engine"],
        "runtime": first["runtime"],
        "world_size": len(hosts),
        "one_machine": all(is_loopback(settings[host]["fabric_address"]) for host in hosts),
        "ranks": [
            {
                "rank": rank,
                "host": host,
                "name": f"rank{rank}",
                "address": settings[host]["fabric_address"],
                "connection": connections[host],
                "login": login(users.get(host, ""), settings[host]["fabric_address"] or connections[host]),
            }
            for rank, host in enumerate(hosts)
        ],
    }


def login(user: str, address: str) -> str:
    """Return how ssh names an account of a host."""
    return f"{user}@{address}" if user else address


def rank_of(plan: Mapping[str, Any], host: str) -> dict[str, Any]:
    """Return the plan's entry for `host`. Raises KeyError when the host has no rank."""
    for entry in plan["ranks"]:
        if entry["host"] == host:
            return dict(entry)
    raise KeyError(host)


def is_loopback(address: str) -> bool:
    """Say whether an IPv4 address never leaves its machine."""
    return address.startswith("127.")


def threads(settings: Mapping[str, Any], plan: Mapping[str, Any], cpus: int) -> int:
    """Return the compute threads of a rank: what was set, else the machine's processors shared by the ranks
    on it.
    """
    if settings["threads"]:
        return int(settings["threads"])
    return max(1, cpus // (plan["world_size"] if plan["one_machine"] else 1))


def choose_ports(
    settings: Mapping[str, Any], listening: Iterable[Mapping[str, Any]], remembered: Mapping[str, Any]
) -> Ports:
    """Return the API port and the rendezvous port on the head.

    `listening` is the head's sockets, each with `port` and `rank` (the rank of this pair that owns it, else
    None); `remembered` is what an earlier run chose. A port that was set is taken as it is, free or not:
    preflight tells its owner.
    """
    foreign = {entry["port"] for entry in listening if entry["rank"] is None}
    port = settings["port"] or _free(
        [remembered.get("port"), PREFERRED_PORT], FIRST_SPARE_PORT, foreign | {settings["master_port"]}
    )
    master_port = settings["master_port"] or _free(
        [remembered.get("master_port"), PREFERRED_MASTER_PORT], FIRST_SPARE_MASTER_PORT, foreign | {port}
    )
    chosen = {}
    if not settings["port"]:
        chosen["port"] = port
    if not settings["master_port"]:
        chosen["master_port"] = master_port
    return Ports(port, master_port, any(remembered.get(name) != value for name, value in chosen.items()))


def _free(wishes: Iterable[int | None], first_spare: int, taken: Collection[int]) -> int:
    """Return the first wish that is not taken, else the first free port from `first_spare` up."""
    for wish in wishes:
        if wish and wish not in taken:
            return wish
    return next(port for port in range(first_spare, 65536) if port not in taken)
