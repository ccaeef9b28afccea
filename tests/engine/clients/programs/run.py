# SPDX-License-Identifier: Apache-2.0
"""Installs what is not in the environment, once, and runs the clients' programs in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
CACHE = ROOT / ".cache" / "clients"
NODE_SOURCES = Path(__file__).parents[1] / "node"
NODE_HOME = CACHE / "node"
OLDER_OPENAI = "2.54.0"
PATIENCE_S = 300


def run_python(program: str, *arguments: str, path: Path | None = None) -> None:
    """Run a Python program; `path` comes before the environment's own packages. Fails with what it printed."""
    environment = {**os.environ, **({} if path is None else {"PYTHONPATH": str(path)})}
    _run([sys.executable, "-m", f"tests.engine.clients.programs.{program}", *arguments], ROOT, environment)


def run_node(program: str, *arguments: str) -> None:
    """Run a JavaScript program as it is in the sources, beside the installed packages."""
    shutil.copy(NODE_SOURCES / f"{program}.mjs", NODE_HOME)
    _run(["node", f"{program}.mjs", *arguments], NODE_HOME, dict(os.environ))


def older_openai() -> Path:
    """Where version 2 of the OpenAI client is."""
    place = CACHE / f"openai-{OLDER_OPENAI}"
    if not (place / "openai").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
        subprocess.run([*command, f"openai=={OLDER_OPENAI}"], check=True)
    return place


def install_node_clients() -> None:
    """Have the packages of the lock file installed."""
    lock = (NODE_SOURCES / "package-lock.json").read_bytes()
    installed = NODE_HOME / "installed-lock.json"
    if installed.exists() and installed.read_bytes() == lock:
        return
    NODE_HOME.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NODE_SOURCES / name, NODE_HOME)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=NODE_HOME, check=True)
    installed.write_bytes(lock)


def _run(command: list[str], directory: Path, environment: dict[str, str]) -> None:
    finished = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
