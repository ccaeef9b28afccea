# SPDX-License-Identifier: Apache-2.0
"""A start of a rank as a document from which it can be made again without a controller, and what it needs of its host.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

import csv
import io
import os.path
from collections.abc import Mapping, Sequence
from typing import Any

# What the docker client itself reads of its environment: such a variable of a rank's goes on its command line instead.
_OF_THE_CLIENT = ("DOCKER_", "HOME", "PATH", "HTTP_", "HTTPS_", "NO_PROXY", "http", "no_proxy", "XDG_", "LD_")
GID_INDEX = "NCCL_IB_GID_INDEX"
_NFS_PORT = 2049


def document(
    entry: Mapping[str, Any],
    spec: Mapping[str, Any],
    spec_hash: str,
    container: Mapping[str, Any] | None,
    link: Mapping[str, Any],
    directories: Mapping[str, str],
) -> dict[str, Any]:
    """Return the start of a rank: `rank`, `name`, `spec_hash`, `ready_url` (empty but for rank 0), `log_dir`,
    `needs`, and either `spec` and `directory` of a process or `container`, its arguments, and `kernels`.

    `entry` is the rank's in the plan, `container` as of `_container.for_rank`, `link` as of `_link`.
    """
    node = link["nodes"][entry["host"]]
    mounts = container["arguments"]["mounts"] if container else []
    remote = any("nfs" in str((one.get("volume_options") or {}).get("type", "")) for one in mounts)
    start = {
        "rank": entry["rank"],
        "name": entry["name"],
        "spec_hash": spec_hash,
        "ready_url": spec.get("ready_url", ""),
        "log_dir": directories["log_dir"],
        "needs": {
            "address": node["address"],
            "netdev": node["netdev"],
            "devices": list(node["devices"]),
            "gid": bool(container) and GID_INDEX in container["arguments"]["env"],
            "reach": [[node["head_address"], _NFS_PORT]] if remote else [],
            "paths": _paths(spec["argv"], mounts),
        },
    }
    if container:
        start.update(container=container["arguments"], kernels=container["kernels"])
    else:
        start.update(spec=dict(spec), directory=directories["directory"])
    return start


def run_words(arguments: Mapping[str, Any], image: str) -> tuple[list[str], dict[str, str]]:
    """Return the docker client's words that run a container with the options of `_container.arguments` from `image`.

    With them come the variables that the client has to have in its environment: values of the rank's do not stand on a
    command line, which everybody on the host can read.
    """
    words = ["run", "--detach", "--restart", "no", "--pull", "never", "--name", arguments["name"]]
    passed = {}
    for name, value in arguments["env"].items():
        own = name.startswith(_OF_THE_CLIENT)
        words += ["--env", f"{name}={value}" if own else name]
        if not own:
            passed[name] = value
    words += [word for name, value in arguments["labels"].items() for word in ("--label", f"{name}={value}")]
    words += [word for mount in arguments["mounts"] for word in ("--mount", _mount(mount))]
    words += [word for device in arguments["devices"] for word in ("--device", device)]
    words += ["--gpus", "all"] if arguments["device_requests"] else []
    words += [word for name in arguments["capabilities"] for word in ("--cap-add", name)]
    words += [word for limit in arguments["ulimits"] for word in ("--ulimit", limit.replace(":", "=", 1))]
    words += ["--user", arguments["user"]] if arguments["user"] else []
    words += ["--network", arguments["network_mode"], "--ipc", arguments["ipc_mode"]]
    words += ["--shm-size", arguments["shm_size"]]
    return [*words, image, *arguments["command"]], passed


def with_gid_index(arguments: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the options with the GID index that the link's address has now: it can move with every boot."""
    return {**arguments, "env": {**arguments["env"], GID_INDEX: str(index)}}


def _paths(argv: Sequence[str], mounts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paths on the host that a start reads: bound ones, and what its arguments name below them."""
    bound = [one for one in mounts if one["type"] == "bind"]
    found = [one["source"] for one in bound]
    for word in argv:
        for one in bound:
            below = word.startswith(f"{one['target']}/")
            # Below what the rank writes to, only the weights are there before it.
            if below and (one["read_only"] or "/snapshots/" in word):
                found.append(os.path.join(one["source"], word[len(one["target"]) + 1 :]))
    if not mounts:
        found += [word for word in argv[1:] if word.startswith("/")]
    return list(dict.fromkeys(found))


def _mount(mount: Mapping[str, Any]) -> str:
    fields = [f"type={mount['type']}", f"source={mount['source']}", f"target={mount['target']}"]
    fields += ["readonly"] if mount["read_only"] else []
    if mount.get("volume_driver"):
        fields.append(f"volume-driver={mount['volume_driver']}")
        fields += [f"volume-opt={name}={value}" for name, value in mount["volume_options"].items()]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
