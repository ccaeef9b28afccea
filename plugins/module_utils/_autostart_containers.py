# SPDX-License-Identifier: Apache-2.0
"""Containers of the pair on this host in the hands of its supervisor, by Docker's client alone.

Standard library only; private to the collection, may change at any time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _autostart_needs,
    _container,
    _container_host,
    _container_log,
    _start_document,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import ProcessIdentity
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import boot_id, start_ticks

# A first mount over NFS, or a device that is slow to come, takes its time.
_RUN_LIMIT_S = 240.0


class Containers:
    """The ranks that are containers of the daemon `docker_host` and belong to the state directory `owner`."""

    def __init__(self, docker_host: str, owner: str) -> None:
        self._docker = Docker(docker_host)
        self._owner = owner
        # A container whose process still runs need not be asked for every time.
        self._known: tuple[ProcessIdentity, dict[str, Any]] | None = None

    def look(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return `running`, `own` and `identity`, or the `cause` of a rank that has ended. Raises DockerError."""
        if self._known and self._known[0].runs():
            return {**self._known[1], "own": _own(self._known[1]["spec_hash"], record)}
        self._known = None
        found: dict[str, Any] = {}
        for rank in _container_host.ranks_of(self._docker, self._owner):
            name = rank["container"]
            if rank["state"] == "running":
                seen = {
                    "running": True,
                    "identity": f"{name} {rank['pid']} {rank['started_at']}",
                    "spec_hash": rank["spec_hash"],
                }
                try:
                    self._known = (ProcessIdentity(rank["pid"], start_ticks(rank["pid"]), boot_id()), seen)
                except OSError:
                    self._known = None
                return {**seen, "own": _own(rank["spec_hash"], record)}
            said = rank["last_words"]
            found["cause"] = said if said.startswith("fatal: ") else f"rank{rank['rank']} {rank['words']}: {said}"
        return found

    def start(self, record: Mapping[str, Any]) -> None:
        """Run the container of a record, from the image it ran then. Raises DockerError and OSError."""
        start = record["start"]
        arguments = start["container"]
        taken = self._docker.inspect(arguments["name"])
        if taken is not None and not _container.is_own(taken, self._owner):
            raise DockerError(f"a container named {arguments['name']} exists and does not belong to this pair")
        needs = start["needs"]
        if needs["gid"]:
            index = _autostart_needs.gid_index(needs["devices"][0], needs["address"])
            if index is not None:
                arguments = _start_document.with_gid_index(arguments, index)
        self._remove_locks(start["kernels"], record["kept"])
        words, passed = _start_document.run_words(arguments, record["kept"])
        try:
            done = self._docker.attempt(*words, limit_s=_RUN_LIMIT_S, environment=passed)
        except DockerError as error:
            raise DockerError(f"{arguments['name']} was not started: {error}") from error
        if done.returncode != 0:
            raise DockerError(f"Docker did not start {arguments['name']}: {done.stderr.strip()}")

    def put_away(self, log_dir: str, keep: int, stop_timeout: float) -> None:
        """Stop every container of the pair here, save its log and remove it. Raises DockerError and OSError."""
        self._known = None
        for rank in _container_host.ranks_of(self._docker, self._owner):
            name = rank["container"]
            if rank["state"] == "running":
                limit_s = stop_timeout + 60.0
                done = self._docker.attempt("stop", "--time", str(int(stop_timeout)), name, limit_s=limit_s)
                if done.returncode != 0:
                    raise DockerError(f"Docker did not stop {name}: {done.stderr.strip()}")
            inspected = self._docker.inspect(name)
            if inspected is None:
                continue
            if keep > 0:
                try:
                    _container_log.save(self._docker, inspected, f"rank{rank['rank']}", log_dir, keep)
                except (DockerError, OSError) as error:
                    # Evidence that could not be saved is no reason to leave the service down.
                    print(f"the log of {name} was not saved: {error}", flush=True)
            self._docker.run("rm", "--force", name, missing_ok=True)

    def _remove_locks(self, kernels: list[str], image: str) -> None:
        """Remove locks that a killed compiler has left, on which the next one would wait for ever."""
        locks = [
            os.path.join(parent, "lock") for root in kernels for parent, _, names in os.walk(root) if "lock" in names
        ]
        if locks:
            volumes = [word for path in kernels for word in ("--volume", f"{path}:{path}")]
            words = ["run", "--rm", "--network", "none", "--pull", "never", *volumes, "--entrypoint", "rm", image]
            self._docker.run(*words, "-f", *locks)


def _own(spec_hash: str, record: Mapping[str, Any] | None) -> bool:
    return record is not None and spec_hash == record["start"]["spec_hash"]
