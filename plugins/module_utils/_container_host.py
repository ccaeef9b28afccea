# SPDX-License-Identifier: Apache-2.0
"""A host's ranks that are containers, and the image they run: what its Docker daemon says, as data.

Judges nothing and raises nothing for what it finds. Private to the collection, may change at any time.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _container, _image, _nfs
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import tree
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_log import last_words


def look(docker_host: str, owner: str, image: str, volume: str = "") -> dict[str, Any]:
    """Return `ranks` (see `ranks_of`), `image` (see `_image.described`), `volume` and `error`, why Docker cannot be
    asked.

    `owner` is the pair's state directory, `image` the name of the image that ranks run, `volume` the one over NFS, of
    which is returned what was compared through it (see `_nfs.remembered`), None where it is not there as it was.
    """
    docker = Docker(docker_host)
    nothing: dict[str, Any] = {"ranks": [], "image": _image.described(None), "volume": None}
    try:
        found = _image.described(docker.inspect(image, kind="image")) if image else _image.described(None)
        options = (docker.inspect(volume, kind="volume") or {}).get("Options") if volume else None
        mounted = _nfs.remembered(owner, volume, options or {}) if volume else None
        return {"ranks": ranks_of(docker, owner), "image": found, "volume": mounted, "error": ""}
    except DockerError as error:
        return {**nothing, "error": str(error)}


def ranks_of(docker: Docker, owner: str) -> list[dict[str, Any]]:
    """Return the containers that are ranks of the pair, in order of their number.

    Each has `rank`, `container` (its name), `state` (running or ended), `words`, `spec_hash`, `pid`, `started_at`,
    `uptime_s`, `pids` (of all its processes), `rss_bytes`, `rails` (its RDMA devices), `exit_code`, `log`, the command
    that shows it, and `last_words`, the line that says why it ended. Raises DockerError.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    result = []
    for name in docker.names({_container.OWNER: owner}):
        inspected = docker.inspect(name)
        seen = _container.state(inspected) if inspected else None
        if seen is None or seen["rank"] is None:
            continue
        running = seen["running"]
        processes = tree(seen["pid"]) if running else {}
        result.append(
            {
                "rank": seen["rank"],
                "container": name,
                "state": "running" if running else "ended",
                "words": seen["words"],
                "spec_hash": seen["spec_hash"],
                "pid": seen["pid"] if running else None,
                "started_at": seen["started_at"],
                "uptime_s": round(_container.uptime_s(seen["started_at"], now) or 0) if running else None,
                "pids": sorted(processes),
                "rss_bytes": sum(processes.values()) if running else None,
                "rails": seen["rails"],
                "exit_code": seen["exit_code"],
                "log": f"docker -H {docker.host} logs {name}",
                "last_words": "" if running else last_words(docker.log_lines(name)),
            }
        )
    return sorted(result, key=lambda entry: (entry["rank"], entry["container"]))


def engine_command(docker_host: str, image: str, command: Sequence[str], state_dir: str) -> list[str]:
    """Return the command that runs an engine's program in a throw-away container, as the account that asks.

    The state directory is the same path inside, so that what the program writes there stays.
    """
    return [
        *("docker", "-H", docker_host, "run", "--rm", "--network", "none", "--env", "HOME=/tmp"),
        *("--user", f"{os.geteuid()}:{os.getegid()}", "--volume", f"{state_dir}:{state_dir}", image, *command),
    ]
