# SPDX-License-Identifier: Apache-2.0
"""The last step to effective settings: what follows from other settings, and in words where each value came from.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _rules
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._mistakes import Given
from ansible_collections.sparkpair.serving.plugins.module_utils._settings import Declaration

ByHost = Mapping[str, Mapping[str, Any]]


def complete(settings: ByHost, connections: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], ByHost]:
    """Return every host's settings with nothing left to derive, and why a derived value is what it is.

    `settings` are those of `_settings.resolve`, in rank order; `connections` the addresses that Ansible uses. The
    reasons are by host and short name.
    """
    completed: dict[str, dict[str, Any]] = {}
    reasons = {}
    for host, chosen in settings.items():
        completed[host], reasons[host] = ADAPTERS[chosen["engine"]].fill_defaults(chosen, len(settings))
        address = _rules.fabric_address(chosen["fabric_address"], connections[host])
        if address != chosen["fabric_address"]:
            completed[host]["fabric_address"] = address
            reasons[host]["fabric_address"] = "ansible_host"
    return completed, reasons


def origins(
    declared: Iterable[Declaration], given: Mapping[str, Given], settings: Mapping[str, Any], reasons: Mapping[str, str]
) -> dict[str, str]:
    """Return where a host's values came from, by short name: set somewhere, derived for a reason, or the default.

    Settings that the engine does not understand are left out.
    """
    engine = settings["engine"]
    result = {}
    for declaration in declared:
        short = declaration.short
        if declaration.engine not in ("", engine) or not ADAPTERS[engine].understands(short, settings):
            continue
        if short in reasons:
            # First, because a derivation may have raised a value that was set.
            result[short] = f"derived: {reasons[short]}"
        else:
            result[short] = f"set {given[declaration.name].origin}" if declaration.name in given else "default"
    return result
