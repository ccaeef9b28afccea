# SPDX-License-Identifier: Apache-2.0
"""What the actions of the link read from the variables of all hosts. Runs on the controller.

Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _link
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._types import plain


@dataclass(frozen=True)
class LinkFacts:
    """The plan, how the link is to be found, and the hosts that were looked at, in rank order.

    `explicit` says by host whether its address was set for the fabric; `floor_gbit` is what the link has to carry, 0
    where that was left open.
    """

    plan: Mapping[str, Any]
    mode: str
    uses_rdma: bool
    api_host: str
    one_rail: bool
    floor_gbit: float
    explicit: Mapping[str, bool]
    nodes: dict[str, dict[str, Any]]

    @property
    def names(self) -> list[str]:
        """The names of the hosts whose address nobody has given."""
        return [entry["connection"] for entry in self.plan["ranks"] if not entry["address"]]

    @property
    def wants_rdma(self) -> bool:
        """Whether the link must be RoCE."""
        return _link.wants_rdma(self.mode, self.uses_rdma, self.nodes)


def read(variables: Mapping[str, Any], registered: str) -> LinkFacts:
    """Return the facts for the whole pair; `registered` names the variable with each host's look, if there was one."""
    plan = plain(variables["__settings_resolved"]["plan"])
    hosts = [entry["host"] for entry in plan["ranks"]]
    known = {host: variables["hostvars"][host] for host in hosts}
    settings = plain(known[hosts[0]]["__settings_resolved"]["settings"])
    looks = {host: plain(known[host].get(registered) or {}) for host in hosts}
    return LinkFacts(
        plan=plan,
        mode=_link.mode(plan, settings["link"]),
        uses_rdma=ADAPTERS[plan["engine"]].uses_rdma(settings),
        api_host=settings["host"],
        one_rail=settings["rails"] == 1,
        floor_gbit=settings["link_floor_gbit"],
        # An address that is the one Ansible uses may be of the fabric or of the LAN.
        explicit={
            entry["host"]: bool(entry["address"]) and entry["address"] != entry["connection"] for entry in plan["ranks"]
        },
        nodes={host: {**look["node"], "host": host} for host, look in looks.items() if "node" in look},
    )
