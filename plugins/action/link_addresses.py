# SPDX-License-Identifier: Apache-2.0
"""Decides the addresses of the pair and says so on the terminal.

Runs on the controller. The decision is in `plugins/module_utils/_link.py`, the documentation in
`plugins/modules/link_addresses.py`.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import _findings, _link, _link_facts
from ansible_collections.sparkpair.serving.plugins.plugin_utils import _terminal


class ActionModule(ActionBase):
    """The action `sparkpair.serving.link_addresses`."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the link, or the failure with everything that keeps the hosts from having one."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        self.validate_argument_spec({})
        own, first = variables["inventory_hostname"], variables["ansible_play_hosts_all"][0]
        known = _link_facts.read(variables, "__roce_link_ports")
        findings: list[_findings.Finding] = []
        if known.wants_rdma:
            known = _link_facts.read(variables, "__roce_link_verified")
            found = _link.pairings(known.plan, known.nodes, known.explicit, known.one_rail)
            findings = [finding for pairing in found for finding in pairing.findings]
        else:
            link = _link.plain(known.plan, known.api_host, known.nodes)
            findings = _link.nameless(link)
        errors = [finding for finding in findings if finding.severity == _findings.ERROR]
        if errors and own != first:
            return {"failed": True, "msg": f"The pair has no link; the message of host {first} says why."}
        if errors:
            data = [finding.as_data() for finding in findings]
            return {"failed": True, "msg": _findings.render(errors), **_terminal.beside({"findings": data})}
        if known.wants_rdma:
            link = _link.measured(known.plan, known.api_host, known.nodes, found)
        if own == first:
            self._display.display(f"link: {link['note']}")
        warnings = [_findings.sentence(finding) for finding in findings if finding.host == own]
        return {"changed": False, "link": link, **({"warnings": warnings} if warnings else {})}
