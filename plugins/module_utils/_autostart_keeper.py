# SPDX-License-Identifier: Apache-2.0
"""The rank of this host in the hands of the pair's supervisor: looked at, started as recorded, stopped with its log
saved.

Ranks are processes or containers, as the record of the last good start says. Standard library only; private to the
collection, may change at any time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _autostart_containers,
    _autostart_files,
    _autostart_needs,
    _rank_process,
    _records,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import DockerError
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_log import last_words, read_lines
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import RankError, RankState, observe
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import boot_id

_START_S = 30.0


class Refused(Exception):
    """The rank must not be started now: somebody has it, or wants it down. The text says who."""


class Keeper:
    """The rank of this host. `config` is the document config.json of the supervisor."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._state_dir = config["state_dir"]
        # One act or look at a time, whoever asks.
        self._lock = threading.Lock()
        self._containers = _autostart_containers.Containers(config["docker_host"], self._state_dir)
        # Why nothing is to run here, while this host or its agent is going down.
        self.leaving = ""

    def record(self) -> dict[str, Any] | None:
        """Return the last start that ended well and can be made again, None when there is none."""
        return next((one for one in _records.starts(self._state_dir) if one.get("start")), None)

    def look(self, watch: bool) -> dict[str, Any]:
        """Return this host as a `HostSeen` has it, all but its name, and `claimed`, the playbook that has its rank.

        `watch` means something to an agent only.
        """
        with self._lock:
            return self._look()

    def start(self, pair: str) -> str:
        """Make the recorded start of `pair`; return why it failed, empty when it was made. Raises Refused."""
        with self._lock, _autostart_files.acting(self._state_dir):
            record = self.record()
            refused = _autostart_files.claimed(self._state_dir) or self._refuses()
            if refused:
                raise Refused(refused)
            if record is None or record["pair"] != pair:
                return "the last good start here is of another pair: run site.yml"
            try:
                self._put_away()
                if "container" in record["start"]:
                    self._containers.start(record)
                else:
                    self._start_process(record["start"])
            except (RankError, DockerError) as error:
                return str(error)
            except OSError as error:
                return f"{error.filename or self._state_dir}: {error.strerror or error}"
            return ""

    def stop(self) -> str:
        """Stop whatever of the pair is here, save its log and remove it; return what went wrong."""
        with self._lock, _autostart_files.acting(self._state_dir):
            # Between the look and this moment a playbook may have taken the ranks.
            if _autostart_files.claimed(self._state_dir):
                return ""
            try:
                self._put_away()
            except (RankError, DockerError) as error:
                return str(error)
            except OSError as error:
                return f"{error.filename or self._state_dir}: {error.strerror or error}"
            return ""

    def _refuses(self) -> str:
        return self.leaving or _autostart_files.stopped(self._state_dir)

    def _look(self) -> dict[str, Any]:
        record = self.record()
        seen: dict[str, Any] = {
            "boot": boot_id(),
            "running": False,
            "own": False,
            "identity": "",
            "cause": "",
            "claimed": _autostart_files.claimed(self._state_dir),
            "refuses": self._refuses(),
            "lacks": [],
            "pair": record["pair"] if record else "",
        }
        try:
            seen.update(self._process_seen(record))
            if not seen["running"] and (record is None or "container" in record["start"]):
                seen.update(self._containers.look(record))
        except (RankError, DockerError) as error:
            seen["lacks"].append(str(error))
        if record is None:
            seen["lacks"].append("no start has ended well here yet: run site.yml")
        elif not seen["running"]:
            seen["lacks"] += _autostart_needs.missing(record, self._config["docker_host"])
        return seen

    def _process_seen(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, _, state in self._processes():
            if state.running and state.rank is not None:
                own = record is not None and state.spec_hash == record["start"]["spec_hash"]
                return {"running": True, "own": own, "identity": f"{state.rank.pid}:{state.rank.start_ticks}"}
            said = last_words(read_lines(state.log, state.log_offset))
            found["cause"] = said if said.startswith("fatal: ") else f"{name} {state.in_words()}: {said}"
        return found

    def _processes(self) -> list[tuple[str, str, RankState]]:
        """Return name, directory and state of the ranks that are processes. Raises RankError."""
        parent = os.path.join(self._state_dir, "ranks")
        names = sorted(os.listdir(parent)) if os.path.isdir(parent) else []
        places = [(name, os.path.join(parent, name)) for name in names if name.startswith("rank")]
        states = [(name, place, observe(place)) for name, place in places]
        return [found for found in states if found[2].exists]

    def _start_process(self, start: Mapping[str, Any]) -> None:
        directory = start["directory"]
        _rank_process.check_spec(start["spec"])
        missing = _rank_process.missing_for(directory, start["spec"])
        if missing:
            raise RankError(" ".join(missing))
        os.makedirs(directory, mode=0o700, exist_ok=True)
        with _rank_process.sole_worker(directory):
            _rank_process.start(directory, start["name"], start["spec"], start["spec_hash"], _START_S)

    def _put_away(self) -> None:
        """Stop what runs and save its log. Raises RankError, DockerError and OSError."""
        config = self._config
        log_dir, keep = os.path.join(self._state_dir, "logs"), config["log_keep"]
        for name, directory, state in self._processes():
            with _rank_process.sole_worker(directory):
                if state.running:
                    state = _rank_process.stop(state, directory, config["stop_timeout"])
                try:
                    _rank_process.put_log_away(directory, state, name, log_dir, keep)
                except OSError as error:
                    # Evidence that could not be saved is no reason to leave the service down; it stays where it is.
                    print(f"the log of {name} was not saved: {error}", flush=True)
                _rank_process.forget(directory)
        record = self.record()
        if record is None or "container" in record["start"]:
            self._containers.put_away(log_dir, keep, config["stop_timeout"])
