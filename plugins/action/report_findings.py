# SPDX-License-Identifier: Apache-2.0
"""Judges the probes of all hosts together: warns, or fails with every finding of every host.

Runs on the controller. The judgement is in `plugins/module_utils/_findings.py`, the documentation in
`plugins/modules/report_findings.py`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _findings,
    _image_wanted,
    _machine_findings,
    _plan,
    _weights_findings,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._types import plain
from ansible_collections.sparkpair.serving.plugins.plugin_utils import _terminal


class ActionModule(ActionBase):
    """The action `sparkpair.serving.report_findings`."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the ports and the findings, or the failure with all of them."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _, arguments = self.validate_argument_spec({"only": {"type": "list", "elements": "str", "default": []}})
        own = variables["inventory_hostname"]
        plan = plain(variables["__settings_resolved"]["plan"])
        hosts = [entry["host"] for entry in plan["ranks"]]
        known = {host: variables["hostvars"][host] for host in hosts}
        settings = {host: plain(known[host]["__settings_resolved"]["settings"]) for host in hosts}
        probes = {host: plain(known[host]["__preflight_probe"]["probe"]) for host in hosts}
        head = probes[hosts[0]]
        ports = _plan.choose_ports(settings[hosts[0]], head["listening"], head["remembered_ports"])

        findings = _findings.judge(plan, settings, probes, ports)
        if all(probes[host].get("machine") for host in hosts):
            machines = {host: probes[host]["machine"] for host in hosts}
            lacking = _weights_findings.missing(plan, settings, probes)
            needs = {
                host: replace(
                    _machine_findings.needs_of(plan, settings[host], probes[host]),
                    cache_bytes=_weights_findings.cache_bytes(settings[host], lacking[host]),
                    counted=lacking[host] is not None,
                )
                for host in hosts
            }
            findings += _machine_findings.judge(machines, needs) + _weights_findings.judge(plan, probes)
        only = arguments["only"]
        findings = [finding for finding in findings if not only or finding.id in only]
        errors = [finding for finding in findings if finding.severity == _findings.ERROR]
        data = [finding.as_data() for finding in findings]
        first = variables["ansible_play_hosts_all"][0]
        if errors:
            if own != first:
                return {
                    "failed": True,
                    "msg": f"The pair cannot start; the message of host {first} says why.",
                }
            return {"failed": True, "msg": _findings.render(errors), **_terminal.beside({"findings": data})}
        warnings = [_findings.sentence(finding) for finding in findings if finding.host == own]
        return {
            "changed": False,
            "findings": data,
            "ports": asdict(ports),
            "image": _image_wanted.bring(plan, settings, probes) if plan["runtime"] == "container" else None,
            "weights": {
                "settled": _weights_findings.settled(plan, settings, probes),
                "mounted_from": _weights_findings.mounted_from(probes),
                "release": _weights_findings.release(plan, findings),
            },
            **({"warnings": warnings} if warnings else {}),
        }
