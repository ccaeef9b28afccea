# SPDX-License-Identifier: Apache-2.0
"""Decides the addresses of the pair and says so on the terminal.

Runs on the controller. The decision is in `plugins/module_utils/_link.py`, the documentation in
`plugins/modules/link_addresses.py`.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import _link
from ansible_collections.sparkpair.serving.plugins.module_utils._types import plain


class ActionModule(ActionBase):
    """The action `sparkpair.serving.link_addresses`."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the link."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        self.validate_argument_spec({})
        plan = plain(variables["__settings_resolved"]["plan"])
        head = variables["hostvars"][plan["ranks"][0]["host"]]
        link = _link.decide(plan, plain(head["__settings_resolved"]["settings"]["host"]))
        if variables["inventory_hostname"] == variables["ansible_play_hosts_all"][0]:
            self._display.display(f"link: {link['note']}")
        return {"changed": False, "link": link}
