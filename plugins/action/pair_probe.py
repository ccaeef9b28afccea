# SPDX-License-Identifier: Apache-2.0
"""Looks at a host through the module `pair_probe`, and says of one that cannot be reached or has no Python what helps.

The documentation is in `plugins/modules/pair_probe.py`, the sentences in `plugins/module_utils/_reach.py`.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import _reach


class ActionModule(ActionBase):
    """The action `sparkpair.serving.pair_probe`."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module has found, or that the host cannot be reached, and why."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        try:
            result = self._execute_module(module_name="sparkpair.serving.pair_probe", task_vars=variables)
        except AnsibleConnectionFailure as error:
            if self._connection.transport != "ssh":
                raise
            address, user, port = (self._connection.get_option(name) for name in ("host", "remote_user", "port"))
            said = _reach.sentence(host, str(error), str(address or host), str(user or ""), int(port) if port else None)
            return {"unreachable": True, "msg": said}
        found = (result.get("ansible_facts") or {}).get("discovered_interpreter_python")
        interpreter = str(found or variables.get("ansible_python_interpreter") or "")
        told = _reach.without_python(host, interpreter, str(result.get("module_stderr") or ""))
        return {"failed": True, "msg": told} if told and result.get("failed") else dict(result)
