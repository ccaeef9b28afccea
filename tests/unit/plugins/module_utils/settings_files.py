# SPDX-License-Identifier: Apache-2.0
"""The declared settings of this repository, and settings and plans made of them, for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkpair.serving.plugins.module_utils import _effective, _plan, _settings
from ansible_collections.sparkpair.serving.plugins.module_utils._mistakes import Given

ROOT = Path(__file__).resolve().parents[4]
META = ROOT / "roles" / "settings" / "meta"
SPECS = yaml.safe_load((META / "argument_specs.yml").read_text())
LIMITS = yaml.safe_load((META / "limits.yml").read_text())
DECLARED = _settings.declarations(SPECS, LIMITS)


def given(**values: Any) -> dict[str, Given]:
    """What somebody set for a host, by setting name without the prefix."""
    return {f"sparkpair_{name}": Given(value, f"at vars.yml ({name})") for name, value in values.items()}


def effective(*hosts: str, **values: Any) -> dict[str, dict[str, Any]]:
    """The effective settings of hosts that were all given the same sound values."""
    settings, mistakes = _settings.resolve(DECLARED, {host: given(**values) for host in hosts})
    assert mistakes == []
    connections = {host: f"192.0.2.{index}" for index, host in enumerate(hosts, start=1)}
    return _effective.complete(settings, connections)[0]


def plan_of(settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The plan for hosts in rank order."""
    return _plan.build(list(settings), settings, {host: host for host in settings})
