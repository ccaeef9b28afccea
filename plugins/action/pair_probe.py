# SPDX-License-Identifier: Apache-2.0
"""Looks at a host through the module `pair_probe`, and says of one that cannot be reached what helps.

The documentation is in `plugins/modules/pair_probe.py`, the sentence in `plugins/module_utils/_reach.py`.
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
        try:
            return self._execute_module(module_name="sparkpair.serving.pair_probe", task_vars=variables)
        except AnsibleConnectionFailure as error:
            if self._connection.transport != "ssh":
                raise
            host = str(variables["inventory_hostname"])
            address, user, port = (self._connection.get_option(name) for name in ("host", "remote_user", "port"))
            said = _reach.sentence(host, str(error), str(address or host), str(user or ""), int(port) if port else None)
            return {"unreachable": True, "msg": said}
