# SPDX-License-Identifier: Apache-2.0
"""Hosts with a cache and a state directory of their own on this machine, whose modules are run as Ansible runs them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.hub.hub import COMMIT, Repository

COLLECTIONS = Path(__file__).resolve().parents[3] / "collections"
REPO = "org/model"


def shard(size: int, seed: int) -> bytes:
    """A safetensors file with one tensor of so many bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(size)


def checkpoint(size: int = 300_000) -> Repository:
    """A small repository with everything that a checkpoint has: shards, their index, plain files, one in a folder."""
    names = ("model-1.safetensors", "model-2.safetensors")
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    files = {
        "config.json": b"{}",
        "README.md": b"weights for tests",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "more/notes.txt": b"a file in a folder",
        **{name: shard(size, seed) for seed, name in enumerate(names)},
    }
    return Repository(files)


class Host:
    """One host. `said` has everything that its modules have printed."""

    def __init__(self, home: Path) -> None:
        self.cache, self.state = home / "huggingface", home / "state"
        self.said = ""

    @property
    def repository(self) -> Path:
        return self.cache / "hub" / f"models--{REPO.replace('/', '--')}"

    @property
    def snapshot(self) -> Path:
        return self.repository / "snapshots" / COMMIT

    def file(self, path: str) -> Path:
        return self.snapshot / path

    def inodes(self) -> dict[str, int]:
        """The inode of every file of the snapshot, links followed."""
        return {path: os.stat(self.snapshot / path).st_ino for path in self.paths()}

    def paths(self) -> list[str]:
        return sorted(str(path.relative_to(self.snapshot)) for path in self.snapshot.rglob("*") if not path.is_dir())

    def contents(self) -> dict[str, bytes]:
        return {path: (self.snapshot / path).read_bytes() for path in self.paths()}

    def run(self, module: str, *, environment: dict[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
        """Run a module and return what it returned."""
        own = {"cache": str(self.cache), "state_dir": str(self.state), **arguments}
        if module in ("hf_snapshot", "snapshot_manifest", "snapshot_pull"):
            own = {"repo": REPO, "revision": COMMIT, "wait": 30, **own}
        own = {name: value for name, value in own.items() if value is not None}
        common = {"_ansible_tmpdir": str(self.state), "_ansible_remote_tmp": str(self.state)}
        run = subprocess.run(
            [sys.executable, "-m", f"ansible_collections.sparkpair.serving.plugins.modules.{module}"],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": {**own, **common}}),
            env={**os.environ, "PYTHONPATH": str(COLLECTIONS), **(environment or {})},
            cwd=COLLECTIONS,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.said += run.stdout + run.stderr
        assert run.stdout.strip(), run.stderr
        result: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
        return result

    def hold(self, repository: Repository) -> list[dict[str, Any]]:
        """Put a repository into the cache as the Hub's library leaves it, and return its manifest."""
        for path, data in repository.files.items():
            blob = self.repository / "blobs" / repository.blob(path)
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(data)
            link = self.file(path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        return self.manifest()

    def manifest(self, **arguments: Any) -> list[dict[str, Any]]:
        """The manifest of the snapshot, which must be right."""
        found = self.run("snapshot_manifest", **arguments)
        assert not found.get("failed"), found["msg"]
        files: list[dict[str, Any]] = found["snapshot"]["files"]
        return files


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
