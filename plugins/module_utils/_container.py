# SPDX-License-Identifier: Apache-2.0
"""A rank as a container: how its document becomes the container's options, and which containers are the pair's own.

A rank's document for a container has `name`, `rank`, `image`, `argv`, `env`, `mounts` (each `type`, `source`, `target`,
`mode`, and for a volume perhaps `driver` and `driver_options`), `devices`, `gpus` (`all` or empty), `capabilities`,
`ulimits`, `shm_size`, `network` and `ipc`, and perhaps `user`. Pure; private to the collection, may change at any time.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

# Labels by which a container is known again. The owner is the pair's state directory on the host, so that two pairs on
# one daemon leave each other alone.
OWNER, RANK, SPEC_HASH = "sparkpair.owner", "sparkpair.rank", "sparkpair.spec-hash"
# Where an engine that compiles for its image finds what it has compiled.
KERNEL_CACHE = "/cache"
# What Docker adds to the number of the signal that ended a container.
_SIGNAL_BASE = 128


def for_rank(
    document: Mapping[str, Any], owner: str, docker_host: str, spec_hash: str, check_argv: Sequence[str]
) -> dict[str, Any]:
    """Return everything that the role needs to run a document as a container.

    `owner` and `docker_host` as given, `arguments` and `check` as of the functions of their names, and `kernels`, the
    directories on the host with what the engine has compiled.
    """
    return {
        "owner": owner,
        "docker_host": docker_host,
        "arguments": arguments(document, owner, spec_hash),
        "check": check(document, owner, check_argv),
        "kernels": [mount["source"] for mount in document["mounts"] if mount["target"] == KERNEL_CACHE],
    }


def arguments(document: Mapping[str, Any], owner: str, spec_hash: str) -> dict[str, Any]:
    """Return the options of community.docker.docker_container that make the document's container.

    Everything that Docker keeps as text is text here, so that a number never differs from itself.
    """
    return {
        **_common(document),
        "name": document["name"],
        "labels": {OWNER: owner, RANK: str(document["rank"]), SPEC_HASH: spec_hash},
        "devices": [f"{device}:{device}" for device in document["devices"]],
        "device_requests": [{"count": -1, "capabilities": [["gpu"]]}] if document["gpus"] == "all" else [],
        "capabilities": list(document["capabilities"]),
        "ulimits": [f"{name}:{limit}:{limit}" for name, limit in document["ulimits"].items()],
        "network_mode": document["network"],
        "ipc_mode": document["ipc"],
        "shm_size": str(document["shm_size"]),
    }


def check(document: Mapping[str, Any], owner: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the options of a throw-away container in which the engine checks a rank's arguments, without a GPU."""
    common = _common(document)
    # What the rank only writes to may not be there yet, and a check makes nothing.
    read = [mount for mount in common["mounts"] if any(f"{word}/".startswith(f"{mount['target']}/") for word in argv)]
    return {
        **common,
        "mounts": [{**mount, "read_only": True} for mount in read],
        "name": f"{document['name']}-check",
        "labels": {OWNER: owner},
        "command": list(argv),
    }


def _common(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "image": document["image"],
        "command": list(document["argv"]),
        "env": {name: str(value) for name, value in document["env"].items()},
        "mounts": [_mount(mount) for mount in document["mounts"]],
        # Empty is the image's own.
        "user": document.get("user", ""),
    }


def _mount(mount: Mapping[str, Any]) -> dict[str, Any]:
    result = {
        "type": mount["type"],
        "source": mount["source"],
        "target": mount["target"],
        "read_only": mount["mode"] == "ro",
    }
    if mount.get("driver"):
        result.update(volume_driver=mount["driver"], volume_options=dict(mount.get("driver_options") or {}))
    return result


def is_own(inspected: Mapping[str, Any], owner: str) -> bool:
    """Say whether a container of `docker inspect` belongs to the pair that keeps its state in `owner`."""
    return (inspected["Config"].get("Labels") or {}).get(OWNER) == owner


def state(inspected: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `docker inspect` says of a rank's container.

    `running`, `words` (the state for people), `exit_code`, `exit_signal`, `out_of_memory`, `started_at` and `ended_at`
    (UTC), `pid`, `spec_hash`, `rank` (None without a label) and `rails`, the RDMA devices that NCCL was given.
    """
    seen = inspected["State"]
    labels = inspected["Config"].get("Labels") or {}
    running = bool(seen["Running"])
    code = None if running or seen.get("Status") == "created" else int(seen["ExitCode"])
    signal = code - _SIGNAL_BASE if code is not None and _SIGNAL_BASE < code < _SIGNAL_BASE + 65 else None
    if running:
        words = "running"
    elif code is None:
        words = f"was never started: {seen.get('Error') or 'Docker does not say why'}"
    elif signal is not None:
        words = f"ended by signal {signal}" + (" for want of memory" if seen.get("OOMKilled") else "")
    else:
        words = f"ended with exit code {code}"
    return {
        "running": running,
        "words": words,
        "exit_code": None if signal is not None else code,
        "exit_signal": signal,
        "out_of_memory": bool(seen.get("OOMKilled")),
        "started_at": _second(seen.get("StartedAt", "")),
        "ended_at": None if running else _second(seen.get("FinishedAt", "")),
        "pid": int(seen["Pid"]) or None,
        "spec_hash": labels.get(SPEC_HASH, ""),
        "rank": int(labels[RANK]) if labels.get(RANK, "").isdigit() else None,
        "rails": _variable(inspected, "NCCL_IB_HCA").replace(",", " ").split(),
    }


def _variable(inspected: Mapping[str, Any], name: str) -> str:
    """Return a variable of a container's environment, empty without it."""
    found = dict(each.partition("=")[::2] for each in inspected["Config"].get("Env") or [])
    return str(found.get(name, ""))


def uptime_s(started_at: str | None, now: datetime.datetime) -> float | None:
    """Return for how many seconds a container has run that was started at a time of `state`."""
    if not started_at:
        return None
    begun = datetime.datetime.strptime(started_at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    return max(0.0, round((now - begun).total_seconds(), 1))


def _second(text: str) -> str | None:
    """Return a time of Docker's, which has nanoseconds, to the second; None for its year 1, which means never."""
    return None if not text or text.startswith("0001-") else f"{text[:19]}Z"
