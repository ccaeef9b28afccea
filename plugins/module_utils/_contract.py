# SPDX-License-Identifier: Apache-2.0
"""A rank's whole contract as one document, and whether the pair that runs already fulfils it.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _plan
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash
from ansible_collections.sparkpair.serving.plugins.module_utils._types import plain

# What stands for a digest in check mode, while the checkpoint that would have it is not written.
UNWRITTEN = "known when the checkpoint is written"


@dataclass(frozen=True)
class Host:
    """What is known of one host: its effective settings, its probe, and the checkpoint it serves."""

    settings: Mapping[str, Any]
    probe: Mapping[str, Any]
    checkpoint: Mapping[str, Any]


def document(
    plan: Mapping[str, Any], host: str, facts: Host, link: Mapping[str, Any], ports: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the document of the rank on `host`: all that makes it what it is, so that its hash tells a
    change.

    Rank 0 has `ready_url`, the URL that answers when the pair serves.
    """
    entry = _plan.rank_of(plan, host)
    engine = ADAPTERS[plan["engine"]]
    state = directories(facts.probe["state_dir"], entry)
    result = {
        "name": entry["name"],
        "rank": entry["rank"],
        "world_size": plan["world_size"],
        "host": host,
        "argv": engine.serve_argv(
            facts.settings,
            model=facts.checkpoint["path"],
            world_size=plan["world_size"],
            rank=entry["rank"],
            rendezvous=link["rendezvous"],
            ports=ports,
            served_name=facts.settings["served_name"],
            threads=_plan.threads(facts.settings, plan, facts.probe["cpus"]),
            api_key_file=facts.probe["api_key_file"]["path"],
        ),
        "env": engine.environment(facts.settings),
        # Where the probe asks the engine for its version too: `python -m` looks for its package there first.
        "cwd": "/",
        "log": os.path.join(state["directory"], "rank.log"),
        "engine": {name: facts.probe["engine"][name] for name in ("version", "code_digest")},
        "checkpoint": {"digest": facts.checkpoint["digest"] or UNWRITTEN},
    }
    if entry["rank"] == 0:
        url = engine.base_url(facts.settings["host"], ports["port"])
        result["ready_url"] = url + engine.ready_path
    return result


def known(variables: Any) -> Host:
    """Return what the roles before have registered for a host, from its variables."""
    probe = plain(variables["__preflight_probe"]["probe"])
    written = plain(variables.get("__weights_checkpoint") or {})
    settings = plain(variables["__settings_resolved"]["settings"])
    return Host(settings, probe, written.get("checkpoint") or probe["checkpoint"])


def directories(state_dir: str, entry: Mapping[str, Any]) -> dict[str, str]:
    """Return where a rank keeps its files (`directory`) and where its logs are saved (`log_dir`)."""
    return {
        "directory": os.path.join(state_dir, "ranks", entry["name"]),
        "log_dir": os.path.join(state_dir, "logs"),
    }


def fulfilled(document_: Mapping[str, Any], probe: Mapping[str, Any]) -> bool:
    """Say whether the rank runs with exactly this document, and no other rank runs from the same state
    directory.
    """
    running = [rank for rank in probe["ranks"] if rank["state"] == "running"]
    return [(rank["rank"], rank["spec_hash"]) for rank in running] == [(document_["rank"], spec_hash(document_))]
