# SPDX-License-Identifier: Apache-2.0
"""What a person got wrong in the settings or the inventory, as data and as text.

Private to the collection, may change at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Given:
    """A value as somebody set it for one host.

    `value` is plain data. `origin` says where it was set, in words that follow "set" ("at
    group_vars/all.yml:3"). `failure` is the reason why there is no value, when a template in it could not
    be rendered.
    """

    value: Any
    origin: str
    failure: str = ""


@dataclass(frozen=True)
class Mistake:
    """One thing to put right: `subject` (a setting, a group) and `problem` (what was found, what is allowed).

    `origin` is where it was set, empty when it is nowhere in particular; `host` the host it concerns, empty
    for all.
    """

    subject: str
    problem: str
    origin: str = ""
    host: str = ""


def merge_hosts(mistakes: list[Mistake]) -> list[tuple[Mistake, list[str]]]:
    """Return each different mistake once, in order of first sight, with the hosts it was seen on."""
    seen: dict[tuple[str, str, str], tuple[Mistake, list[str]]] = {}
    for mistake in mistakes:
        key = (mistake.subject, mistake.problem, mistake.origin)
        hosts = seen.setdefault(key, (mistake, []))[1]
        if mistake.host and mistake.host not in hosts:
            hosts.append(mistake.host)
    return list(seen.values())


def render(mistakes: list[Mistake]) -> str:
    """Return all mistakes as one text for the terminal: a headline, then a numbered paragraph each."""
    merged = merge_hosts(mistakes)
    count = "One thing" if len(merged) == 1 else f"{len(merged)} things"
    lines = [f"{count} in the settings or the inventory must be put right; nothing has been touched."]
    for number, (mistake, hosts) in enumerate(merged, start=1):
        where = f" ({', '.join(hosts)})" if hosts else ""
        origin = f" Set {mistake.origin}." if mistake.origin else ""
        lines.append(f"{number}. {mistake.subject}{where}: {mistake.problem}.{origin}")
    return "\n".join(lines)
