# SPDX-License-Identifier: Apache-2.0
"""Finds out which rails this host may have, and has it prove them.

Runs on the controller and, through `roce_link_info`, on the host. What to ask is decided in
`plugins/module_utils/_link.py`, the documentation is in `plugins/modules/verify_rails.py`.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import _link, _link_facts


class ActionModule(ActionBase):
    """The action `sparkpair.serving.verify_rails`."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the second look of this host."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _, options = self.validate_argument_spec({"sysfs": {"type": "str", "default": "/sys"}})
        known = _link_facts.read(variables, "__roce_link_ports")
        if not known.wants_rdma:
            return {"skipped": True, "msg": "No host has an RDMA port."}
        found = _link.pairings(known.plan, known.nodes, known.explicit, known.one_rail)
        routes, pings = _link.wanted(found, known.nodes, variables["inventory_hostname"])
        return self._execute_module(
            module_name="sparkpair.serving.roce_link_info",
            module_args={"sysfs": options["sysfs"], "names": known.names, "routes_to": routes, "pings": pings},
            task_vars=variables,
        )
