# SPDX-License-Identifier: Apache-2.0
"""Puts the whole plan of the pair into one document.

Runs on the controller. The document is made in `plugins/module_utils/_plan_document.py`; its documentation is in
`plugins/modules/plan_document.py`.
"""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import _contract, _plan_document
from ansible_collections.sparkpair.serving.plugins.module_utils._types import plain


class ActionModule(ActionBase):
    """The action `sparkpair.serving.plan_document`."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the document."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        self.validate_argument_spec({})
        resolved = plain(variables["__settings_resolved"])
        plan = resolved["plan"]
        known = {entry["host"]: variables["hostvars"][entry["host"]] for entry in plan["ranks"]}
        head = plain(known[plan["ranks"][0]["host"]]["__settings_resolved"])
        if resolved["recorded"]:
            settings = {host: plain(one["__settings_resolved"]["settings"]) for host, one in known.items()}
            document = _plan_document.from_recorded(plan, settings, head["origins"], resolved["recorded"])
        else:
            link = plain(variables["__roce_link_addresses"]["link"])
            hosts = {host: _contract.known(one) for host, one in known.items()}
            document = _plan_document.from_probes(plan, hosts, head["origins"], link)
        # Relative to where ansible-playbook was started, as a person means it.
        path = head["settings"]["plan_json"]
        json_path = os.path.abspath(os.path.expanduser(path)) if path else ""
        return {"changed": False, "document": document, "json_path": json_path}
