# SPDX-License-Identifier: Apache-2.0
"""Measures the link between the hosts of the pair and warns when it is far under what its ports say.

Runs on the controller and, through the module, on the hosts: the head answers, the others ask. What the figures mean is
in `plugins/module_utils/_link_rate.py`, the documentation in `plugins/modules/link_rate.py`.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import _findings, _link, _link_facts, _link_rate


class ActionModule(ActionBase):
    """The action `sparkpair.serving.link_rate`."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the rates that this host has measured."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _, options = self.validate_argument_spec({"sysfs": {"type": "str", "default": "/sys"}})
        if self._task.check_mode:
            return {"skipped": True, "msg": "Check mode sends nothing over the link."}
        known = _link_facts.read(variables, "__roce_link_verified")
        if not known.wants_rdma:
            return {"skipped": True, "msg": "The link is plain TCP, of which nothing is promised."}
        own, head = variables["inventory_hostname"], known.plan["ranks"][0]["host"]
        found = _link.pairings(known.plan, known.nodes, known.explicit, known.one_rail)
        # The head is the first host of each of its pairs.
        ours = [pairing for pairing in found if pairing.hosts[0] == head and own in pairing.hosts]
        rails = [rail for pairing in ours for rail in pairing.rails]
        arguments: dict[str, Any] = {"sysfs": options["sysfs"]}
        arguments["port"] = variables["__preflight_report"]["ports"]["master_port"]
        if own == head:
            addresses = list(dict.fromkeys(rail.first.address for rail in rails))
            arguments.update(state="answers", addresses=addresses, askers=len(ours))
        else:
            ends = [{"netdev": r.second.netdev, "source": r.second.address, "address": r.first.address} for r in rails]
            arguments.update(state="asks", rails=ends)
        result = self._execute_module(
            module_name="sparkpair.serving.link_rate", module_args=arguments, task_vars=variables
        )
        if result.get("failed") or own == head:
            return result
        if result["reason"]:
            self._display.display(f"link: its rate could not be measured from {own}: {result['reason']}")
            return result
        rates = result["rates"]
        told = f"{rates['sent']:g} Gbit/s from {own} to {head}, {rates['received']:g} back"
        self._display.display(f"link: {told}, with TCP over {len(rails)} of its rails at once")
        findings = _link_rate.judge(own, head, rates, result["says_gbit"], known.floor_gbit)
        warnings = [_findings.sentence(finding) for finding in findings]
        return {**result, **({"warnings": warnings} if warnings else {})}
