# SPDX-License-Identifier: Apache-2.0
"""Writes down every rank's contract and says whether the running pair fulfils it.

Runs on the controller. The contract is in `plugins/module_utils/_contract.py`, the documentation in
`plugins/modules/rank_specs.py`.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkpair.serving.plugins.module_utils import _container, _contract, _plan, _start_document
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash
from ansible_collections.sparkpair.serving.plugins.module_utils._tensorfold_log import amended, decision_of
from ansible_collections.sparkpair.serving.plugins.module_utils._types import plain


class ActionModule(ActionBase):
    """The action `sparkpair.serving.rank_specs`."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return this host's rank, and whether the pair as a whole is fulfilled and ready."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _, arguments = self.validate_argument_spec({"decision": {"type": "dict"}})
        own = variables["inventory_hostname"]
        plan = plain(variables["__settings_resolved"]["plan"])
        link = plain(variables["__roce_link_addresses"]["link"])
        ports = plain(variables["__preflight_report"]["ports"])
        known = {entry["host"]: _contract.known(variables["hostvars"][entry["host"]]) for entry in plan["ranks"]}
        documents = _contract.documents(plan, known, link, ports)
        entry = _plan.rank_of(plan, own)
        spec = documents[own]
        engine = ADAPTERS[plan["engine"]]
        head = known[plan["ranks"][0]["host"]]
        owner = known[own].probe["state_dir"]
        missing = [text for one in known for text in _contract.missing(plan, one, known[one])]
        if missing and not self._task.check_mode:
            return {"failed": True, "msg": " ".join(missing)}
        # In check mode no image was sent to the others.
        image = known[own].image if self._task.check_mode else head.image
        container = None
        if plan["runtime"] == "container":
            decision = arguments["decision"]
            started = amended(spec, decision_of(decision)) if decision else spec
            container = _container.for_rank(
                started, owner, known[own].settings["docker_host"], spec_hash(spec), engine.check_argv(spec["argv"])
            )
        places = _contract.directories(owner, entry)
        return {
            "changed": False,
            "rank": entry["rank"],
            "name": entry["name"],
            **places,
            "log": f"docker -H {container['docker_host']} logs {spec['name']}" if container else spec["log"],
            "container": container,
            "image_present": bool(image),
            "spec": spec,
            "spec_hash": spec_hash(spec),
            "start": _start_document.document(entry, spec, spec_hash(spec), container, link, places),
            "check_argv": engine.check_argv(spec["argv"]),
            "checkable": _contract.checkable(plan, known[own], image, missing),
            "fulfilled": all(_contract.fulfilled(documents[host], known[host].probe) for host in known),
            "ready": head.probe["endpoint"].get("ready", False),
            "local_url": engine.base_url(head.settings["host"], ports["port"]),
            "advertised_url": engine.base_url(link["advertised"], ports["port"]),
        }
