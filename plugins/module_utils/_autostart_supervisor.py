# SPDX-License-Identifier: Apache-2.0
"""The pair's supervisor on the head: looks at all hosts every other second, decides, and has it done.

What it decides is in `_pair_decide.py`; how a rank is started or stopped in `_autostart_keeper.py`. Standard library
only; private to the collection, may change at any time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _autostart_files, _pair_decide, _ready
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_keeper import Keeper, Refused
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_wire import Remote
from ansible_collections.sparkpair.serving.plugins.module_utils._key_file import KeyFileError, first_key
from ansible_collections.sparkpair.serving.plugins.module_utils._pair_decide import HostSeen, Memory, Strike
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import utc_now

STRUCK_OUT = 3
_FIELDS = {field.name for field in dataclasses.fields(HostSeen)}


class Supervisor:
    """The supervisor of a pair. `config` is its config.json, with `host`, `workers`, `limits` and `beat_s`."""

    def __init__(self, config: Mapping[str, Any], secret: str, keeper: Keeper, tell: Callable[[str], None]) -> None:
        self._config, self._keeper, self._tell = config, keeper, tell
        self._state_dir = config["state_dir"]
        self._limits = _pair_decide.Limits(**config["limits"])
        # A rank that does not end in its time is killed, and its log is saved.
        limits = (max(2.0, self._limits.lost_s / 3), config["stop_timeout"] + 120.0)
        self._hosts: dict[str, Keeper | Remote] = {config["host"]: keeper}
        for one in config["workers"]:
            self._hosts[one["host"]] = Remote(one["address"], one["port"], secret, *limits)
        self._pool = concurrent.futures.ThreadPoolExecutor(len(self._hosts))
        self._lost: dict[str, float] = {}
        state = _autostart_files.read(self._state_dir, "state.json") or {}
        strikes = tuple(Strike(one["at"], one["cause"]) for one in state.get("strikes", ()))
        self.memory = Memory(strikes=strikes)
        self._state: dict[str, Any] = {}
        self._seen: list[HostSeen] = []

    def run(self, end: threading.Event) -> int:
        """Supervise until `end` is set or nothing is started any more. Returns the exit code."""
        while not end.wait(self._config["beat_s"]):
            decision = self.step()
            if decision.action == _pair_decide.GIVE_UP:
                self._write(decision.words, gave_up=True)
                return STRUCK_OUT
            if _autostart_files.stopped(self._state_dir) and not any(map(_runs, self._seen)):
                # So that a start of the unit is a start.
                self._write(decision.words)
                return 0
        return 0

    def step(self) -> _pair_decide.Decision:
        """Look, decide, and have it done. Returns the decision."""
        paused, self._seen = self._look()
        ready = self._is_ready()
        now = time.monotonic()
        decision = _pair_decide.decide(self.memory, self._seen, ready, paused, now, utc_now(), self._limits)
        self.memory = decision.memory
        self._write(decision.words)
        if decision.action == _pair_decide.START:
            self._start()
        elif decision.action == _pair_decide.STOP:
            self._stop()
        return decision

    def leave(self) -> None:
        """Bring both ranks down before this host or its supervisor goes."""
        self._write("stops: the supervisor ends")
        self._stop()

    def _look(self) -> tuple[str, list[HostSeen]]:
        """Return who has the ranks instead of us, and every host in rank order."""
        paused = _autostart_files.claimed(self._state_dir)
        asked = {host: self._pool.submit(one.look, not paused) for host, one in self._hosts.items()}
        seen = []
        for host, answer in asked.items():
            try:
                found = answer.result()
            except OSError:
                begun = self._lost.setdefault(host, time.monotonic())
                seen.append(HostSeen(host, lost_s=time.monotonic() - begun))
                continue
            self._lost.pop(host, None)
            # A playbook comes to the hosts one after the other.
            paused = paused or found.get("claimed", "")
            known = {name: value for name, value in found.items() if name in _FIELDS}
            seen.append(HostSeen(host, **{**known, "lacks": tuple(found.get("lacks", ()))}))
        return paused, seen

    def _is_ready(self) -> bool:
        if not all(map(_runs, self._seen)) or self.memory.phase == _pair_decide.SERVING:
            return False
        record = self._keeper.record()
        try:
            key = first_key(self._config["api_key_file"])
        except KeyFileError:
            key = None
        return record is not None and _ready.is_ready(record["start"]["ready_url"], key)

    def _start(self) -> None:
        """Start the other ranks, then rank 0, which waits for them."""
        pair = self._seen[0].pair
        head, *others = self._hosts.items()
        jobs = [(host, self._pool.submit(one.start, pair)) for host, one in others]
        try:
            failed = [f"{host}: {text}" for host, job in jobs if (text := job.result())]
            if not failed and (text := head[1].start(pair)):
                failed = [f"{head[0]}: {text}"]
        except (OSError, Refused) as error:
            # A machine's or a person's doing, which the next look tells.
            self._tell(f"the start was broken off: {error}")
            self.memory = _pair_decide.Memory(strikes=self.memory.strikes)
            self._stop()
            return
        if failed:
            self.memory = _pair_decide.failed_start(self.memory, failed[0], time.monotonic(), utc_now())
            self._write(f"stops: {failed[0]}")
            self._stop()

    def _stop(self) -> None:
        """Stop all ranks at once, each with its own time to end: one that went first would look lost to the others."""
        jobs = [(host, self._pool.submit(one.stop)) for host, one in self._hosts.items() if host not in self._lost]
        for host, job in jobs:
            try:
                text = job.result()
            except OSError as error:
                text = str(error)
            if text:
                self._tell(f"{host}: the rank was not stopped: {text}")

    def _write(self, words: str, gave_up: bool = False) -> None:
        """Keep for people what is done, and tell it when it is new."""
        strikes = [dataclasses.asdict(one) for one in self.memory.strikes]
        state = {"words": words, "phase": self.memory.phase, "strikes": strikes, "gave_up": gave_up}
        if state == self._state:
            return
        if words != self._state.get("words"):
            self._tell(words)
        self._state = state
        # A full disk is no reason to leave the service down.
        with contextlib.suppress(OSError):
            _autostart_files.write(self._state_dir, "state.json", state)


def _runs(seen: HostSeen) -> bool:
    return seen.running
