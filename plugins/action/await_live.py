# SPDX-License-Identifier: Apache-2.0
"""Waits on the controller until all ranks of a world are live, or tells at once which one was lost and why.

One instance runs for every host, as for any task; each looks at its own host through rank_process_info and
shares what it sees with the others through a directory of this run. The instance of rank 0 shows the
progress. What the sightings mean is decided in module_utils/_live.py; the documentation is in
plugins/modules/await_live.py.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkpair.serving.plugins.module_utils import _live, _tensorfold_log
from ansible_collections.sparkpair.serving.plugins.module_utils._board import Board
from ansible_collections.sparkpair.serving.plugins.module_utils._live import Sighting

display = Display()

# How long a look at a host may wait for its rank to end or to become ready. Where a look itself takes long, because the
# host is busy or far away, it waits longer in proportion: looking is not to keep a rank from starting.
_LOOK_S = 2.0
_LONGEST_LOOK_S = 6.0
_WAIT_PER_COST = 4.0
_FIRST_LOOK_S = 2.0
# A rank that lost its peer says so and ends within seconds; its last lines are worth that wait.
_LAST_LOOK_S = 4.0
_LAST_WORDS_S = 8.0
# A link may hiccup during minutes of loading; three looks in a row that fail are no hiccup.
_CONNECTION_FAILURES = 3


def _decision_in(seen: list[Sighting]) -> dict[str, Any] | None:
    """Return what rank 0 has decided, None before it has."""
    return next((one.decision for one in seen if one.rank == 0), None)


class ActionModule(ActionBase):
    """The action `sparkpair.serving.await_live`."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the ranks once they are live, or the failure with the evidence of all of them."""
        result = super().run(tmp, task_vars)
        self._variables = task_vars or {}
        _, options = self.validate_argument_spec(
            {
                "rank": {"type": "int", "required": True},
                "world_size": {"type": "int", "required": True},
                "directory": {"type": "str"},
                "container": {"type": "dict"},
                "transport": {"type": "str", "choices": ["ib"]},
                "retry": {"type": "dict"},
                "ready_url": {"type": "str"},
                "api_key_file": {"type": "str", "default": ""},
                "updates": {"type": "dict", "default": {}},
                "timeout": {"type": "float", "default": 600},
                "progress_interval": {"type": "float", "default": 5},
                "tail_lines": {"type": "int", "default": 25},
            },
            required_if=[("rank", 0, ["ready_url"])],
            required_one_of=[("directory", "container")],
        )
        if self._task.check_mode:
            return {**result, "skipped": True, "msg": "Check mode starts no rank, so none was waited for."}
        self._options = options
        self._host = str(self._variables["inventory_hostname"])
        self._board = Board(os.path.join(constants.DEFAULT_LOCAL_TMP, f"await_live-{self._task._uuid}"))
        self._started = time.monotonic()
        return {**result, "changed": False, **self._await()}

    def _await(self) -> dict[str, Any]:
        """Look until there is a verdict, and return the result."""
        own = self._look(0)
        cost_s = time.monotonic() - self._started
        wait_s = min(max(_LOOK_S, _WAIT_PER_COST * cost_s), _LONGEST_LOOK_S)
        shown = ""
        shown_at = 0.0
        while True:
            self._board.publish(own)
            seen = self._board.read()
            verdict = _live.judge(seen)
            elapsed = time.monotonic() - self._started
            if own.rank == 0:
                state = " ".join(map(_live.doing, seen))
                if state != shown or elapsed - shown_at >= self._options["progress_interval"]:
                    display.display(_live.progress(elapsed, seen, self._options["world_size"]))
                    shown, shown_at = state, elapsed
            if verdict is None and elapsed >= self._options["timeout"]:
                verdict = _live.TIMED_OUT
            if verdict == _live.LOST:
                return self._lost(own)
            if verdict is not None:
                self._board.publish(dataclasses.replace(own, verdict=verdict, final=True))
                return self._told(verdict, elapsed, seen)
            look_s = min(wait_s, self._options["timeout"] - elapsed)
            if own.anchor("ready_s") is not None and own.rank != 0:
                # Nothing more is to be expected of this rank: the news will come from the others.
                self._board.wait(lambda seen: _live.judge(seen) is not None, look_s)
                look_s = 0
            own = self._look(look_s)

    def _lost(self, own: Sighting) -> dict[str, Any]:
        """Look once more, when every rank has had the time for its last words, and return the failure."""
        self._board.publish(dataclasses.replace(own, verdict=_live.LOST))
        if not own.lost:
            own = self._look(_LAST_LOOK_S, wait_for=["exit"])
        own = dataclasses.replace(own, verdict=_live.LOST, final=True)
        self._board.publish(own)
        # The host of a rank nobody has seen yet may be about to look, or, with few forks, have its turn later.
        self._board.wait(lambda seen: len(seen) == self._options["world_size"], _FIRST_LOOK_S)
        seen = self._board.wait(lambda seen: all(one.final for one in seen), _LAST_WORDS_S)
        decision = None
        if self._options["retry"]:
            if own.rank == 0:
                self._board.publish(dataclasses.replace(own, decision=self._decide(seen)))
            # One rank decides for all, from what all have said.
            decided = self._board.wait(_decision_in, _LAST_WORDS_S)
            decision = _decision_in(decided) or self._decide(seen)
        return self._told(_live.LOST, time.monotonic() - self._started, seen, decision)

    def _decide(self, seen: list[Sighting]) -> dict[str, Any]:
        """Return what follows from a start that failed, as data."""
        retry = self._options["retry"]
        logs = {one.rank: one.info.get("anchors", {}) for one in seen}
        exited = [one.rank for one in seen if one.info.get("exists") and not one.info.get("running")]
        tried = _tensorfold_log.attempts_of(retry.get("after"))
        return _tensorfold_log.after_failure(retry["settings"], tried, logs, exited).as_data()

    def _told(
        self, verdict: str, elapsed: float, seen: list[Sighting], decision: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the task's result for a verdict."""
        options = self._options
        world, updates = options["world_size"], options["updates"]
        told: dict[str, Any] = {
            "verdict": verdict,
            "elapsed_s": round(elapsed, 1),
            "ranks": [
                {
                    "rank": one.rank,
                    "host": one.host,
                    "doing": _live.doing(one),
                    "exit_code": one.info.get("exit_code"),
                    "exit_signal": one.info.get("exit_signal"),
                    "anchors": one.info.get("anchors"),
                }
                for one in seen
            ],
        }
        slow = _live.over_sockets(seen) if options["transport"] == "ib" else []
        if verdict == _live.LIVE and slow:
            return {**told, "failed": True, "msg": _live.fallen_back(slow)}
        if verdict == _live.LIVE:
            return {**told, "msg": f"All ranks are live after {elapsed:.0f} s."}
        told["fitting_window_tokens"] = _live.fitting_window(seen)
        if decision and decision["action"] != _tensorfold_log.STOP:
            told["decision"] = decision
            if options["rank"] == 0:
                display.warning(f"{decision['words'][0].upper()}{decision['words'][1:]}.")
            return {**told, "msg": decision["words"]}
        if verdict == _live.LOST:
            why = f"\nNo further try: {decision['words']}." if decision else ""
            return {**told, "failed": True, "msg": _live.failure(seen, world, updates) + why}
        return {**told, "failed": True, "msg": _live.timeout(elapsed, seen, world, updates)}

    def _ready_question(self) -> dict[str, Any]:
        """Return how the host of rank 0 asks whether it is ready; the other hosts have nobody to ask."""
        if self._options["rank"] != 0:
            return {}
        return {name: self._options[name] for name in ("ready_url", "api_key_file")}

    def _look(self, wait_s: float, wait_for: list[str] | None = None) -> Sighting:
        """Return the rank of this host as it is now, or as soon as something happens to it within `wait_s`."""
        options = self._options
        module = "rank_container_info" if options["container"] else "rank_process_info"
        arguments = {
            **(options["container"] or {"directory": options["directory"]}),
            "wait": wait_s,
            "wait_for": wait_for or ["exit", "ready", "anchor"],
            "tail_lines": options["tail_lines"],
            **self._ready_question(),
        }
        for attempt in range(1, _CONNECTION_FAILURES + 1):
            try:
                info = self._execute_module(
                    module_name=f"sparkpair.serving.{module}",
                    module_args=arguments,
                    task_vars=self._variables,
                )
                break
            except AnsibleConnectionFailure as exc:
                if attempt == _CONNECTION_FAILURES:
                    trouble = f"the host does not answer: {exc}"
                    lost = Sighting(options["rank"], self._host, trouble, verdict=_live.LOST, final=True)
                    self._board.publish(lost)
                    raise
                display.vv(f"{self._host}: looking at the rank failed, trying again: {exc}")
                time.sleep(_LOOK_S)
        if info.get("failed"):
            return Sighting(options["rank"], self._host, trouble=str(info.get("msg")))
        # The server's port may answer for somebody else before the rank finds it taken.
        ready = bool(info.get("ready") and info["anchors"]["serving_url"])
        return Sighting(options["rank"], self._host, ready=ready, info=info)
