# SPDX-License-Identifier: Apache-2.0
"""A head and a worker on this machine, each with the installed supervisor's program, run as systemd would."""

from __future__ import annotations

import gzip
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.request
from pathlib import Path
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _autostart_files, _records, _start_document
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import observe
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash
from ansible_collections.sparkpair.serving.plugins.modules import autostart_program

from tests.integration.plays import play
from tests.integration.site import free_ports

RANK = Path(__file__).with_name("ranks.py")
HEAD, WORKER = "head", "worker"
_LIMIT_S = 60.0


class Daemon:
    """The supervisor's program of one host, and what it says."""

    def __init__(self, program: Path, state_dir: Path) -> None:
        command = [sys.executable, "-I", "-B", "-u", str(program), str(state_dir)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
        self._lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip())

    def hears(self, words: str) -> str:
        """Wait for a line with these words, and return it."""
        deadline = time.monotonic() + _LIMIT_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"nothing said {words!r}: {self.said}") from None
            self.said.append(line)
            if words in line:
                return line

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.ends()

    def ends(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(_LIMIT_S)
        self._reader.join(_LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


class Pair:
    """Both hosts: state directories with a recorded start, the program installed by its module."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self.agent_port, self.master, self.api = free_ports(3)
        self.flag = home / "shutdown"
        self.daemons: dict[str, Daemon] = {}
        for rank, host in enumerate((HEAD, WORKER)):
            _records.write_start(str(self.state_dir(host)), "20261130-010000", {"pair": "p", "start": self.start(rank)})
        common = {
            "docker_host": "unix:///nowhere",
            "stop_timeout": 10,
            "log_keep": 5,
            "shutdown_flag": str(self.flag),
        }
        worker = {"host": WORKER, "address": "127.0.0.1", "port": self.agent_port}
        self.configs: dict[str, dict[str, Any]] = {
            HEAD: {
                **common,
                "host": HEAD,
                "unit": "sparkpair-head",
                "role": "head",
                "workers": [worker],
                "api_key_file": "",
                "beat_s": 0.1,
                "limits": {"wait_s": 30, "lost_s": 2, "settled_s": 3600},
            },
            WORKER: {**common, **worker, "unit": "sparkpair-worker", "role": "worker", "lease_s": 3},
        }
        self.install()

    def start(self, rank: int) -> dict[str, Any]:
        """The recorded start of a rank."""
        host = (HEAD, WORKER)[rank]
        argv = [sys.executable, str(RANK), str(rank), "127.0.0.1", str(self.master), str(self.api), str(self.home)]
        ready = {"ready_url": f"http://127.0.0.1:{self.api}/v1/models"} if rank == 0 else {}
        spec = {"argv": argv, "env": {}, **ready}
        node = {"address": "127.0.0.1", "netdev": "", "devices": []}
        places = {
            "directory": str(self.state_dir(host) / "ranks" / f"rank{rank}"),
            "log_dir": str(self.state_dir(host) / "logs"),
        }
        entry = {"rank": rank, "name": f"rank{rank}", "host": host}
        return _start_document.document(entry, spec, spec_hash(spec), None, {"nodes": {host: node}}, places)

    def install(self) -> None:
        """Put the program on both hosts as its module does; the worker gets the head's secret."""
        secret = ""
        for host, config in self.configs.items():
            params = {"config": config, "secret": secret}
            options = types.SimpleNamespace(params=params, check_mode=False)
            made = autostart_program.present(options, str(self.state_dir(host)))
            secret = Path(made["secret_file"]).read_text().strip()

    def owner(self, state: str, **options: Any) -> list[dict[str, Any]]:
        """Take the ranks of both hosts, or give them back, as a playbook does."""
        place = f"{self.home}/{{{{ inventory_hostname }}}}"
        task = {"sparkpair.serving.pair_owner": {"state_dir": place, "state": state, **options}}
        played = play(self.home, [task], hosts={HEAD: {}, WORKER: {}})
        assert played.returncode == 0, played.output
        return [played.one(host=host) for host in (HEAD, WORKER)]

    def state_dir(self, host: str) -> Path:
        return self.home / host

    def boots(self, *hosts: str) -> None:
        """Start the program of hosts as a boot does: for the first time in it."""
        for host in hosts:
            (self.state_dir(host) / "autostart" / "boot").unlink(missing_ok=True)
        self.runs(*hosts)

    def runs(self, *hosts: str) -> None:
        """Start the program of hosts as somebody does who starts the unit."""
        for host in hosts:
            program = self.state_dir(host) / "autostart" / "program"
            self.daemons[host] = Daemon(program, self.state_dir(host))

    def says(self, words: str, host: str = HEAD) -> str:
        return self.daemons[host].hears(words)

    def pids(self) -> list[int | None]:
        """The process ids of the ranks, None for one that does not run."""
        states = [observe(str(self.state_dir(host) / "ranks" / f"rank{n}")) for n, host in enumerate((HEAD, WORKER))]
        return [state.rank.pid if state.running and state.rank else None for state in states]

    def steps(self) -> dict[int, int]:
        """The steps that both ranks report over HTTP."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.api}/health", timeout=10) as answer:
            return {one["rank"]: one["step"] for one in json.load(answer)["ranks"]}

    def serves(self) -> bool:
        """Say whether both ranks go on, by the API's own words."""
        before = self.steps()
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline:
            now = self.steps()
            if all(now[rank] > before[rank] for rank in (0, 1)):
                return True
        return False

    def saved(self, host: str) -> list[str]:
        """The saved logs of a host, the oldest first."""
        paths = sorted((self.state_dir(host) / "logs").glob("*"))
        return [gzip.decompress(path.read_bytes()).decode() for path in paths]

    def starts(self) -> list[str]:
        """Which ranks were started, in order."""
        path = self.home / "starts"
        return path.read_text().split() if path.exists() else []

    def state(self, host: str = HEAD) -> dict[str, Any]:
        """What status.yml is told."""
        told = _autostart_files.told(str(self.state_dir(host)))
        assert told is not None
        return told

    def close(self) -> None:
        """End everything that was started."""
        for daemon in self.daemons.values():
            if daemon.process.poll() is None:
                self.flag.touch()
                daemon.end()
        for pid in filter(None, self.pids()):
            os.kill(pid, signal.SIGKILL)
