# SPDX-License-Identifier: Apache-2.0
"""Writes down every rank's contract and says whether the running pair fulfils it.

Runs on the controller. The contract is in `plugins/module_utils/_contract.py`, the documentation in
`plugins/modules/rank_specs.py`.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import _contract, _plan
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash
from ansible_collections.sparkpair.serving.plugins.module_utils._types import plain


class ActionModule(ActionBase):
    """The action `sparkpair.serving.rank_specs`."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return this host's rank, and whether the pair as a whole is fulfilled and ready."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        self.validate_argument_spec({})
        own = variables["inventory_hostname"]
        plan = plain(variables["__settings_resolved"]["plan"])
        link = plain(variables["__roce_link_addresses"]["link"])
        ports = plain(variables["__preflight_report"]["ports"])
        known = {entry["host"]: _contract.known(variables["hostvars"][entry["host"]]) for entry in plan["ranks"]}
        documents = {host: _contract.document(plan, host, known[host], link, ports) for host in known}
        entry = _plan.rank_of(plan, own)
        spec = documents[own]
        engine = ADAPTERS[plan["engine"]]
        head = known[plan["ranks"][0]["host"]]
        return {
            "changed": False,
            "rank": entry["rank"],
            "name": entry["name"],
            **_contract.directories(known[own].probe["state_dir"], entry),
            "spec": spec,
            "spec_hash": spec_hash(spec),
            "check_argv": engine.check_argv(spec["argv"]),
            "checkable": bool(known[own].checkpoint["digest"]),
            "fulfilled": all(_contract.fulfilled(documents[host], known[host].probe) for host in known),
            "ready": head.probe["endpoint"].get("ready", False),
            "local_url": engine.base_url(head.settings["host"], ports["port"]),
            "advertised_url": engine.base_url(link["advertised"], ports["port"]),
        }
