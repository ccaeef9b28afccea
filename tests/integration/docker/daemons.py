# SPDX-License-Identifier: Apache-2.0
"""Docker daemons of the tests' own: each with its own data, socket and processes, beside any that the machine has."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.debian import codename

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "docker-tests"
BASE = "sparkpair-test-base:1"
DOCKERD = shutil.which("dockerd", path="/usr/sbin:/usr/bin")
BOOTSTRAP = shutil.which("mmdebstrap")
# The one that came with the daemon: another one on the machine may speak a later language than the daemon knows.
DOCKER = shutil.which("docker", path="/usr/bin")
_PACKAGES = "python3,patch,dash,coreutils,sed,grep,tar"
# overlay2 needs a file system under it that can carry it, vfs works everywhere and copies everything.
_STORAGE = ("overlay2", "vfs")
_START_S = 30
# A Spark's Docker has NVIDIA's runtime and its hook, which hands out the GPU; here both are there and hand out nothing.
# The runtime is the ordinary one, but for locking all memory, which no container on a container may; and as NVIDIA's
# lends the driver's libraries, it lends the installed engine to images that look for it at /lent.
_RUNTIME = """#!/usr/bin/env python3
import json, os, sys
LENT = @LENT@
if "--bundle" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    process = config["process"]
    process["rlimits"] = [one for one in process.get("rlimits") or [] if one["type"] != "RLIMIT_MEMLOCK"]
    if any("/lent/" in variable for variable in process["env"]):
        for name, source in LENT.items():
            bind = {"destination": "/lent/" + name, "type": "bind", "source": source, "options": ["rbind", "ro"]}
            config["mounts"].append(bind)
    with open(path, "w") as file:
        json.dump(config, file)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""
_LENT = {"engine": str(ROOT / "engine" / "src"), "packages": sysconfig.get_path("purelib")}
# A GPU as nvidia-smi shows one that shares the machine's memory.
_NVIDIA_SMI = """#!/bin/sh
case "$1" in
    *compute-apps*) ;;
    *) echo '0, NVIDIA GB10, 580.173.02, [N/A], [N/A], 0, 2200, 2418, 12.0' ;;
esac
"""


def missing() -> str:
    """What has to be installed for these tests, empty when nothing is missing."""
    wanted = {"docker.io": DOCKERD and DOCKER, "mmdebstrap": BOOTSTRAP}
    return " ".join(package for package, found in wanted.items() if not found)


class Daemon:
    """A running dockerd."""

    def __init__(self, home: Path, storage: str) -> None:
        self.home = home
        self.socket = f"unix://{home}/docker.sock"
        self.log = home / "dockerd.log"
        self.programs = home / "bin"
        self.programs.mkdir()
        for name, text in (
            ("nvidia-container-runtime", _RUNTIME.replace("@LENT@", json.dumps(_LENT))),
            ("nvidia-container-runtime-hook", "#!/bin/sh\n"),
            ("nvidia-smi", _NVIDIA_SMI),
        ):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        runtimes = {"nvidia": {"path": str(self.programs / "nvidia-container-runtime")}}
        (home / "daemon.json").write_text(json.dumps({"runtimes": runtimes, "default-runtime": "nvidia"}))
        command = [
            *(str(DOCKERD), "--config-file", str(home / "daemon.json"), "--host", self.socket),
            *("--data-root", str(home / "data"), "--exec-root", str(home / "exec"), "--pidfile", str(home / "pid")),
            *("--iptables=false", "--ip6tables=false", "--bridge=none", f"--storage-driver={storage}"),
        ]
        with self.log.open("wb") as log:
            environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def comes_up(self) -> bool:
        """Wait until the daemon answers, or has ended."""
        deadline = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.run("version", check=False).returncode == 0:
                return True
            time.sleep(0.1)
        return False

    def run(self, *arguments: str, check: bool = True, stdin: Any = None) -> subprocess.CompletedProcess[str]:
        """Run the docker client against this daemon."""
        done = subprocess.run(
            [str(DOCKER), "-H", self.socket, *arguments],
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done

    def inspect(self, name: str) -> dict[str, Any]:
        """What the daemon knows of a container or an image."""
        return json.loads(self.run("inspect", name).stdout)[0]

    def names(self) -> list[str]:
        """The names of all containers, running or not."""
        return sorted(self.run("ps", "--all", "--format", "{{.Names}}").stdout.split())

    def remove_containers(self) -> None:
        """Remove what a test has left."""
        ids = self.run("ps", "--all", "--quiet").stdout.split()
        if ids:
            self.run("rm", "--force", *ids)

    def ask_to_stop(self) -> None:
        """Remove the containers and ask the daemon to end, which takes it some seconds."""
        if self.process.poll() is None:
            with contextlib.suppress(AssertionError):
                self.remove_containers()
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End the daemon with everything it started, and remove its files."""
        self.ask_to_stop()
        if self.process.poll() is None:
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for line in Path("/proc/self/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith(f"{self.home}/"):
                subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(self.home, ignore_errors=True)


@contextlib.contextmanager
def running(count: int) -> Iterator[list[Daemon]]:
    """Daemons that are up and have the base image."""
    started: list[Daemon] = []
    try:
        started.extend(_start() for _ in range(count))
        base = base_archive()
        for daemon in started:
            with base.open("rb") as archive:
                daemon.run("import", "-", BASE, stdin=archive)
        yield started
    finally:
        for daemon in started:
            daemon.ask_to_stop()
        for daemon in started:
            daemon.stop()


def _start() -> Daemon:
    for storage in _STORAGE:
        # A short path: the path of a socket may not be longer than 107 bytes.
        daemon = Daemon(Path(tempfile.mkdtemp(prefix="sparkpair-dockerd-")), storage)
        if daemon.comes_up():
            return daemon
        said = daemon.log.read_text()[-2000:]
        daemon.stop()
    raise AssertionError(f"no Docker daemon could be started: {said}")


def base_archive() -> Path:
    """The file system of the base image: Debian with Python and patch, unpacked once and kept."""
    archive = CACHE / "base.tar"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            unfinished = CACHE / "base.new.tar"
            subprocess.run(
                [str(BOOTSTRAP), "--quiet", "--variant=extract", f"--include={_PACKAGES}", codename(), str(unfinished)],
                check=True,
                stdin=subprocess.DEVNULL,
            )
            os.replace(unfinished, archive)
    return archive
