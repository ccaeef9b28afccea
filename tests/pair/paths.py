# SPDX-License-Identifier: Apache-2.0
"""Where the virtual pair keeps what it makes: disks that are made once, and what belongs to the machines that run."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache" / "pair"
# Written while machines run: where they have their sockets, who they are, and how ssh reaches them.
RUNNING = CACHE / "running.json"
SSH_CONFIG = CACHE / "ssh_config"
