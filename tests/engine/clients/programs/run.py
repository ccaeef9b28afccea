# SPDX-License-Identifier: Apache-2.0
"""Installs what is not in the environment, once, and runs the clients' programs in processes of their own.

python -m tests.engine.clients.programs.run     installs the agent programs, which are large
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
CACHE = ROOT / ".cache" / "clients"
CLIENTS = Path(__file__).parents[1]
NODE_HOME = CACHE / "node"
AGENTS_HOME = CACHE / "agents"
OLDER_OPENAI = "2.54.0"
PATIENCE_S = 300


def run_python(program: str, *arguments: str, path: Path | None = None) -> None:
    """Run a Python program; `path` comes before the environment's own packages. Fails with what it printed."""
    environment = {**os.environ, **({} if path is None else {"PYTHONPATH": str(path)})}
    _run([sys.executable, "-m", f"tests.engine.clients.programs.{program}", *arguments], ROOT, environment)


def run_node(program: str, *arguments: str) -> None:
    """Run a JavaScript program as it is in the sources, beside the installed packages."""
    shutil.copy(CLIENTS / "node" / f"{program}.mjs", NODE_HOME)
    _run(["node", f"{program}.mjs", *arguments], NODE_HOME, dict(os.environ))


def older_openai() -> Path:
    """Where version 2 of the OpenAI client is."""
    place = CACHE / f"openai-{OLDER_OPENAI}"
    if not (place / "openai").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
        subprocess.run([*command, f"openai=={OLDER_OPENAI}"], check=True)
    return place


def install(name: str) -> None:
    """Have the packages of `node` or `agents` installed in their place in the cache, once for each set of versions.

    The agents have no lock file: what they depend on are their own programs for every platform, at exact versions.
    """
    if is_installed(name):
        return
    home = CACHE / name
    home.mkdir(parents=True, exist_ok=True)
    pins = _pins(name)
    for file in pins:
        shutil.copy(file, home)
    command = "ci" if any(file.name == "package-lock.json" for file in pins) else "install"
    subprocess.run(["npm", command, "--no-audit", "--no-fund", "--ignore-scripts"], cwd=home, check=True)
    # The install scripts that are needed: they put the program for this platform in place.
    for needed in ("@anthropic-ai/claude-code/install.cjs", "opencode-ai/postinstall.mjs"):
        for script in home.glob(f"node_modules/{needed}"):
            subprocess.run(["node", str(script)], cwd=script.parent, check=True)
    (home / "installed").write_bytes(_versions(name))


def is_installed(name: str) -> bool:
    """Whether the packages are there in the versions that are asked for."""
    stamp = CACHE / name / "installed"
    return stamp.exists() and stamp.read_bytes() == _versions(name)


def _pins(name: str) -> list[Path]:
    return sorted((CLIENTS / name).glob("package*.json"))


def _versions(name: str) -> bytes:
    return b"".join(file.read_bytes() for file in _pins(name))


def run_agent(command: list[str], directory: Path, environment: dict[str, str]) -> str:
    """Let an agent program work in `directory`, which is its home too. Returns what it printed."""
    program = AGENTS_HOME / "node_modules" / ".bin" / command[0]
    here = {"HOME": str(directory), "PWD": str(directory)}
    return _run([str(program), *command[1:]], directory, {**os.environ, **here, **environment})


def _run(command: list[str], directory: Path, environment: dict[str, str]) -> str:
    finished = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


if __name__ == "__main__":
    install("agents")
