# SPDX-License-Identifier: Apache-2.0
"""An action that waits for a job on a host and shows on the controller how far it is.

The module of the same name starts or finds the job and waits for a few seconds at a time; what it says between is shown
here. Private to the collection, may change at any time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

_SHOW_S = 5.0
# The job goes on while the line to the host is down; three failures in a row are no hiccup any more.
_CONNECTION_FAILURES = 3


class Watched(ActionBase):
    """The base of the actions; `module` is the name of the module, `subject` the option that names what is worked
    on.
    """

    _supports_check_mode = True
    module = ""
    subject = "repo"

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's last result."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = dict(self._task.args)
        host = str(variables.get("inventory_hostname", ""))
        result = self._ask(arguments, variables)
        before: Mapping[str, Any] = {}
        shown = told_at = time.monotonic()
        warnings = list(result.get("warnings") or [])
        while not result.get("failed") and result.get("finished") is False:
            progress = result.get("progress") or {}
            now = time.monotonic()
            if progress and now - shown >= _SHOW_S:
                seconds = now - told_at
                self._display.display(line(host, str(arguments.get(self.subject, "")), progress, before, seconds))
                shown, told_at, before = now, now, progress
            arguments["revision"] = (result.get("snapshot") or {}).get("revision") or arguments.get("revision", "")
            result = self._ask({**arguments, "wait_only": True}, variables)
            warnings += [each for each in result.get("warnings") or [] if each not in warnings]
        return {**result, "warnings": warnings} if warnings else result

    def _ask(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        for attempt in range(1, _CONNECTION_FAILURES + 1):
            try:
                return dict(
                    self._execute_module(
                        module_name=f"sparkpair.serving.{self.module}", module_args=arguments, task_vars=variables
                    )
                )
            except AnsibleConnectionFailure:
                if attempt == _CONNECTION_FAILURES:
                    raise
        raise AssertionError("unreachable")


def line(host: str, subject: str, progress: Mapping[str, Any], before: Mapping[str, Any], seconds: float) -> str:
    """Return one line about a job: how much is done, how fast since the line before, and how long the rest takes."""
    done, total = int(progress.get("done", 0)), int(progress.get("total", 0))
    text = f"{host}: {progress.get('doing', 'working')} {subject}: {done / 1e9:.2f} of {total / 1e9:.2f} GB"
    if before.get("doing") == progress.get("doing") and done > int(before.get("done", 0)) and seconds > 0:
        rate = (done - int(before.get("done", 0))) / seconds
        text += f", {rate / 1e6:.0f} MB/s, {_duration((total - done) / rate)} left"
    return text


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
