# SPDX-License-Identifier: Apache-2.0
"""A rank's whole contract as one document, and whether the pair that runs already fulfils it.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _engine_tensorfold, _plan
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS, PROCESSES
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash
from ansible_collections.sparkpair.serving.plugins.module_utils._types import plain

# What stands for a digest in check mode, while the checkpoint that would have it is not written.
UNWRITTEN = "known when the checkpoint is written"


# The same for an image that is not on the head yet, and for a commit that no download has chosen yet.
UNBROUGHT = "known when the image is there"
UNPINNED = "main-as-first-downloaded"


@dataclass(frozen=True)
class Host:
    """What is known of one host: its effective settings, its probe, and the checkpoint it serves.

    `revisions` are the commits of `model` and `drafter` that are to be served, for an engine that reads from the Hub's
    cache; `image` is the identity of the image that the host was found to have last.
    """

    settings: Mapping[str, Any]
    probe: Mapping[str, Any]
    checkpoint: Mapping[str, Any]
    revisions: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


def documents(
    plan: Mapping[str, Any], known: Mapping[str, Host], link: Mapping[str, Any], ports: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the document of every rank by host: all that makes it what it is, so that its hash tells a change.

    `known` is in rank order. Rank 0 has `ready_url`, the URL that answers when the pair serves.
    """
    if plan["engine"] in PROCESSES:
        return {host: _document(plan, host, known, link, ports) for host in known}
    homes = {host: {name: one.probe[name] for name in ("home", "hf_home")} for host, one in known.items()}
    return {
        host: _engine_tensorfold.document(
            one.settings,
            entry=_plan.rank_of(plan, host),
            world_size=plan["world_size"],
            link=link,
            ports=ports,
            revisions=_head(known).revisions,
            homes=homes,
            patches=plan["image"]["hash"],
        )
        for host, one in known.items()
    }


def _document(
    plan: Mapping[str, Any],
    host: str,
    known: Mapping[str, Host],
    link: Mapping[str, Any],
    ports: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the document of a rank of an engine that can be a process, and a container as well."""
    facts = known[host]
    in_container = plan["runtime"] == "container"
    entry = _plan.rank_of(plan, host)
    engine = ADAPTERS[plan["engine"]]
    state = directories(facts.probe["state_dir"], entry)
    keys = facts.probe["api_key_file"]["path"]
    result = {
        "name": facts.settings["container_name"] if in_container else entry["name"],
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
            api_key_file=keys,
            node=link["nodes"][host],
        ),
        "env": engine.environment(facts.settings),
        "checkpoint": {"digest": facts.checkpoint["digest"] or UNWRITTEN},
    }
    if in_container:
        # All ranks get the head's image.
        result["engine"] = {"version": facts.settings["image"], "code_digest": _head(known).image or UNBROUGHT}
        result.update(
            engine.container(
                facts.settings,
                model=facts.checkpoint["path"],
                state_dir=facts.probe["state_dir"],
                ids=facts.probe["ids"],
                api_key_file=keys,
                gpus="nvidia" in facts.probe["machine"]["docker"]["runtimes"],
            )
        )
    else:
        result["engine"] = {name: facts.probe["engine"][name] for name in ("version", "code_digest")}
        # Where the probe asks the engine for its version too: `python -m` looks for its package there first.
        result["cwd"] = "/"
        result["log"] = os.path.join(state["directory"], "rank.log")
    if entry["rank"] == 0:
        url = engine.base_url(facts.settings["host"], ports["port"])
        result["ready_url"] = url + engine.ready_path
    return result


def missing(plan: Mapping[str, Any], host: str, facts: Host) -> list[str]:
    """Return a sentence for every snapshot that a host is to serve from its own cache and has not.

    What the role of the weights has put there is not in the look that came before it.
    """
    borrowed = _plan.rank_of(plan, host)["rank"] > 0 and facts.settings["worker_weights"] == "nfs"
    if plan["engine"] in PROCESSES or borrowed or facts.checkpoint.get("verified"):
        return []
    return [
        f"{host}: {one['repository']} at {one['revision'] or 'main'} is not in the cache {facts.probe['hf_cache']}. "
        "Bring it there with playbooks/weights.yml, or set sparkpair_hf_cache to the cache that has it."
        for one in facts.probe["snapshots"]
        if not one["present"]
    ]


def checkable(plan: Mapping[str, Any], facts: Host, image: str, missing_: Sequence[str]) -> bool:
    """Say whether there is already everything that the arguments of a rank name, so that the engine can check them.

    `image` is the identity of the image that the host has now.
    """
    if plan["runtime"] == "container" and not image:
        return False
    return not missing_ if plan["engine"] not in PROCESSES else bool(facts.checkpoint["digest"])


def known(variables: Any) -> Host:
    """Return what the roles before have registered for a host, from its variables."""
    probe = plain(variables["__preflight_probe"]["probe"])
    written = plain(variables.get("__weights_checkpoint") or {})
    settings = plain(variables["__settings_resolved"]["settings"])
    # The head's own look, or what was brought to it and, with it, to every other host.
    brought = plain(variables.get("__engine_image_head") or {}).get("image") or {}
    image = brought.get("identity") or ((probe.get("container") or {}).get("image") or {}).get("identity", "")
    checkpoint = written.get("checkpoint") or probe["checkpoint"]
    return Host(settings, probe, checkpoint, _revisions(settings, probe, written), image)


def _revisions(settings: Mapping[str, Any], probe: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, str]:
    """Return the commits to serve: pinned, else what the role of the weights has chosen, else what the cache has."""
    found = {one["repository"]: one["revision"] for one in probe.get("snapshots", ())}
    chosen = written.get("revisions") or {}
    return {
        name: settings[f"{name}_revision"] or chosen.get(name) or found.get(settings[f"{name}_id"]) or UNPINNED
        for name in ("model", "drafter")
    }


def _head(known: Mapping[str, Host]) -> Host:
    return next(iter(known.values()))


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
