# SPDX-License-Identifier: Apache-2.0
"""The whole plan of a pair as one document: settings and their origins, ranks, memory, disks, times, licences.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _contract,
    _engine_tensorfold,
    _estimates,
    _plan,
    _recorded,
    _spec_diff,
    _tensorfold_memory,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash

GIB = 2**30

ByHost = Mapping[str, Mapping[str, Any]]


def from_recorded(
    plan: Mapping[str, Any], settings: ByHost, origins: Mapping[str, str], recorded: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the plan for ranks in containers on hosts of which everything needed was recorded.

    `settings` are in rank order, `origins` those of the head; both name what is shown. `recorded` was checked.
    """
    hosts = list(settings)
    facts = {host: recorded["hosts"][host] for host in hosts}
    head = settings[hosts[0]]
    link = _recorded.link(recorded, hosts, one_rail=head["rails"] == 1)
    ports = _plan.choose_ports(head, [], {})
    homes = {host: {"home": one["home"], "hf_home": one.get("hf_home", "")} for host, one in facts.items()}
    ranks = [
        _engine_tensorfold.document(
            settings[entry["host"]],
            entry=entry,
            world_size=plan["world_size"],
            link=link,
            ports={"port": ports.port, "master_port": ports.master_port},
            revisions=_revisions(head, facts[entry["host"]]["weights"]),
            homes=homes,
        )
        for entry in plan["ranks"]
    ]
    flat = {
        host: {
            "weights_missing_bytes": one["weights"]["missing_bytes"],
            "image_present": one["image_patches"] == _engine_tensorfold.release(head).patches,
            "disk": one["disk"],
        }
        for host, one in facts.items()
    }
    return {
        **_common(plan, settings, origins),
        "link": link,
        "ranks": [_hashed(rank) for rank in ranks],
        "memory": _tensorfold_memory.plan(head, {host: one["available_bytes"] / GIB for host, one in facts.items()}),
        "disk": {host: _estimates.disk(settings[host], rank, one) for rank, (host, one) in enumerate(flat.items())},
        "time": _estimates.minutes(head, flat),
    }


def from_probes(
    plan: Mapping[str, Any],
    known: Mapping[str, _contract.Host],
    origins: Mapping[str, str],
    link: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the plan for hosts that were looked at; `known` is in rank order.

    The engine sparkpair makes its own estimate of the memory when it starts, before it loads weights.
    """
    head = next(iter(known.values()))
    chosen = _plan.choose_ports(head.settings, head.probe["listening"], head.probe["remembered_ports"])
    ports = {"port": chosen.port, "master_port": chosen.master_port}
    ranks = _contract.documents(plan, known, link, ports).values()
    available = {host: one.probe["memory"]["available_bytes"] / GIB for host, one in known.items()}
    if plan["engine"] == "tensorfold":
        memory = _tensorfold_memory.plan(head.settings, available)
    else:
        told = [{"host": host, "available_gib": round(gib, 2)} for host, gib in available.items()]
        memory = {"window": head.settings["context"], "ranks": told}
    return {
        **_common(plan, {host: one.settings for host, one in known.items()}, origins),
        "link": link,
        "ranks": [_hashed(rank) for rank in ranks],
        "memory": memory,
    }


def _common(plan: Mapping[str, Any], settings: ByHost, origins: Mapping[str, str]) -> dict[str, Any]:
    first, *others = settings
    shown = {name: settings[first][name] for name in origins}
    return {
        "settings": {**shown, "extra_env": _without_secrets(shown["extra_env"])},
        "origins": dict(origins),
        "hosts": {
            host: {name: settings[host][name] for name in origins if settings[host][name] != shown[name]}
            for host in others
        },
        "licences": plan["licences"],
    }


def _hashed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as it may be shown, with the hash of what it really is."""
    return {**document, "env": _without_secrets(document["env"]), "spec_hash": spec_hash(dict(document))}


def _without_secrets(env: Mapping[str, Any]) -> dict[str, Any]:
    secret = _spec_diff.secret_names(dict(env), ())
    return {name: "(secret)" if name in secret else value for name, value in env.items()}


def _revisions(settings: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, str]:
    return {
        "model": settings["model_revision"] or weights.get("model_revision") or _contract.UNPINNED,
        "drafter": settings["drafter_revision"] or weights.get("drafter_revision") or _contract.UNPINNED,
    }
