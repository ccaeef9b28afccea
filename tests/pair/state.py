# SPDX-License-Identifier: Apache-2.0
"""What is known of the machines that run: where they are and how they are reached, in one small file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path

from tests.pair import layout
from tests.pair.paths import RUNNING, SSH_CONFIG


@dataclasses.dataclass(frozen=True)
class Running:
    """A machine: its process, and the ports on loopback that lead to its ssh and to the API's port on it."""

    pid: int
    ssh_port: int
    api_port: int


@dataclasses.dataclass(frozen=True)
class State:
    """The machines of one keeper. `home` has their sockets and consoles, `key` says which disks they run from."""

    home: str
    keeper: int
    count: int
    key: str
    machines: dict[str, Running]

    def write(self) -> None:
        """Make it known, and how ssh gets there."""
        RUNNING.parent.mkdir(parents=True, exist_ok=True)
        keys = Path(self.key) / "keys"
        lines = ["# Written for the machines that run now: ssh -F .cache/pair/ssh_config spark-head"]
        for name, machine in self.machines.items():
            lines += [f"Host {name} {layout.lan_address(name)}", f"  Port {machine.ssh_port}"]
        lines += [
            "Host *",
            "  HostName 127.0.0.1",
            "  User spark",
            "  IdentitiesOnly yes",
            f"  IdentityFile {keys}/id_ed25519",
            f"  UserKnownHostsFile {keys}/known_hosts",
            "  GlobalKnownHostsFile /dev/null",
            "  ConnectTimeout 120",
            "  ServerAliveInterval 10",
            "  ServerAliveCountMax 12",
            "  LogLevel ERROR",
        ]
        SSH_CONFIG.write_text("\n".join(lines) + "\n")
        unfinished = RUNNING.with_suffix(".new")
        unfinished.write_text(json.dumps(dataclasses.asdict(self)))
        os.replace(unfinished, RUNNING)

    @classmethod
    def read(cls) -> State | None:
        """Return what runs, None when nothing does."""
        try:
            found = json.loads(RUNNING.read_text())
        except OSError:
            return None
        return cls(**{**found, "machines": {name: Running(**one) for name, one in found["machines"].items()}})

    @classmethod
    def forget(cls, home: str) -> None:
        """Take back what was written for the machines in `home`."""
        known = cls.read()
        if known and known.home == home:
            for path in (RUNNING, SSH_CONFIG):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
