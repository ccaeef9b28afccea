# SPDX-License-Identifier: Apache-2.0
"""Recorded facts: what a look at the hosts would find, from a file, so that a plan needs no host.

`check` says everything that is wrong with a file, each with the path inside it. Pure; private to the collection, may
change at any time. docs/examples/two-sparks.yml is an example.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Check = Callable[[Any], str]
_MISSING = object()


def check(data: Any, hosts: Sequence[str]) -> list[str]:
    """Return every mistake in recorded facts for `hosts`, each beginning with its path; none means they can be used."""
    if not isinstance(data, Mapping) or not isinstance(data.get("hosts"), Mapping):
        return ["hosts: it is missing; the file is a mapping with the facts of every host under hosts"]
    problems = [f"{key}: there is no such fact; known is hosts" for key in data if key != "hosts"]
    for host in hosts:
        if host not in data["hosts"]:
            known = ", ".join(map(str, data["hosts"])) or "none"
            problems.append(f"hosts.{host}: it is missing, and the inventory has that host; the file has {known}")
    for host, facts in data["hosts"].items():
        problems += _against(_HOST, facts, f"hosts.{host}")
    if not problems:
        problems = _rails(data["hosts"], hosts) + _meeting_point(data["hosts"], hosts)
    return problems


def link(data: Mapping[str, Any], hosts: Sequence[str], one_rail: bool) -> dict[str, Any]:
    """Return the link of checked facts, with the keys that a rank's document needs of `_link.measured`.

    `hosts` are in rank order. Two hosts meet on their cable, more on the head's ordinary network.
    """
    head = hosts[0]
    address = data["hosts"][head]["link"]["address"]
    nodes = {}
    for host in hosts:
        node = {"head_address": address, **data["hosts"][host]["link"]}
        devices = list(node["devices"][:1] if one_rail else node["devices"])
        nodes[host] = {**node, "devices": devices, "socket_netdev": node.get("socket_netdev") or node["netdev"]}
    meet = address if len(hosts) == 2 else data["hosts"][head]["lan_address"]
    return {"transport": "roce", "rdma": True, "rendezvous": meet, "nodes": nodes}


def _rails(recorded: Mapping[str, Any], hosts: Sequence[str]) -> list[str]:
    counts = {host: len(recorded[host]["link"]["devices"]) for host in hosts}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{host} has {count}" for host, count in counts.items())
        return [f"hosts.*.link.devices: ranks pair their rails by position, so all lists need one length; {found}"]
    return []


def _meeting_point(recorded: Mapping[str, Any], hosts: Sequence[str]) -> list[str]:
    if len(hosts) == 2:
        return []
    problems = []
    if "lan_address" not in recorded[hosts[0]]:
        problems.append(f"hosts.{hosts[0]}.lan_address: it is missing; more than two hosts meet there")
    return problems + [
        f"hosts.{host}.link.socket_netdev: it is missing; more than two hosts meet over it"
        for host in hosts
        if not recorded[host]["link"].get("socket_netdev")
    ]


def _against(shape: Mapping[str, Any], value: Any, path: str) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{path}: it is no mapping"]
    problems = []
    for key, want in shape.items():
        found = value.get(key.rstrip("?"), _MISSING)
        place = f"{path}.{key.rstrip('?')}"
        if found is _MISSING:
            if not key.endswith("?"):
                problems.append(f"{place}: it is missing")
        elif isinstance(want, Mapping):
            problems += _against(want, found, place)
        elif problem := want(found):
            problems.append(f"{place}: {problem}")
    known = {key.rstrip("?") for key in shape}
    listed = ", ".join(sorted(known))
    return problems + [f"{path}.{key}: there is no such fact; known are {listed}" for key in value if key not in known]


def _text(value: Any) -> str:
    return "" if isinstance(value, str) else f"{value!r} is not text"


def _path(value: Any) -> str:
    return "" if isinstance(value, str) and value.startswith("/") else f"{value!r} is no absolute path"


def _path_or_empty(value: Any) -> str:
    return "" if value == "" else _path(value)


def _count(value: Any) -> str:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return "" if good else f"{value!r} is not a whole number from 0 up"


def _count_or_none(value: Any) -> str:
    return "" if value is None else _count(value)


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"


def _address(value: Any) -> str:
    try:
        ipaddress.IPv4Address(value if isinstance(value, str) else "")
    except ValueError:
        return f"{value!r} is no IPv4 address"
    return ""


def _names(value: Any) -> str:
    good = isinstance(value, (list, tuple)) and value and all(isinstance(name, str) and name for name in value)
    return "" if good else f"{value!r} is not a list of one or more names"


_HOST: dict[str, Any] = {
    "home": _path,
    "hf_home?": _path_or_empty,
    "available_bytes": _count,
    "lan_address?": _address,
    "link": {
        "address": _address,
        "head_address?": _address,
        "netdev": _text,
        "devices": _names,
        "gid_index": _count_or_none,
        "socket_netdev?": _text,
        "mtu?": _count,
    },
    "image_patches": _text,
    "weights": {"missing_bytes": _count_or_none, "model_revision?": _text, "drafter_revision?": _text},
    "disk": {"cache_free_bytes": _count, "docker_free_bytes": _count, "one_disk": _flag},
}
