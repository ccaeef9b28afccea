# SPDX-License-Identifier: Apache-2.0
"""The one place that decides by which address ranks, and people, reach each other.

Pure. Every other part takes its addresses from here. Private to the collection, may change at any time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._plan import is_loopback


def decide(plan: Mapping[str, Any], api_host: str) -> dict[str, Any]:
    """Return the link of a pair of any size.

    `api_host` is the head's bind address. The result has `transport` (tcp), `rdma`, `rendezvous` (the
    head's address for the other ranks), `advertised` (the head's address for clients), `nodes` (each host's
    `address` on the link) and `note`, a sentence for people.
    """
    head = plan["ranks"][0]
    nodes = {entry["host"]: {"address": entry["address"]} for entry in plan["ranks"]}
    if plan["one_machine"]:
        note = f"loopback: all {plan['world_size']} ranks are on one machine and talk plain TCP, without RDMA"
    else:
        pairs = ", ".join(f"{host} {node['address']}" for host, node in nodes.items())
        note = f"plain TCP, without RDMA: {pairs}"
    return {
        "transport": "tcp",
        "rdma": False,
        "rendezvous": head["address"],
        "advertised": _advertised(api_host, head["connection"], head["address"]),
        "nodes": nodes,
        "note": note,
    }


def _advertised(api_host: str, connection: str, link: str) -> str:
    """Return the head's address for clients: where it listens, or for a wildcard where the controller
    reaches it.

    The link comes last: it is a private cable between the machines.
    """
    if api_host != "0.0.0.0":
        return api_host
    try:
        address = str(ipaddress.IPv4Address(connection))
    except ValueError:
        return link
    return link if is_loopback(address) else address
