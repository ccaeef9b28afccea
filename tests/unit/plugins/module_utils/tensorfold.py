# SPDX-License-Identifier: Apache-2.0
"""Two Sparks with the engine TensorFold for the tests: effective settings, recorded facts, the whole plan."""

from __future__ import annotations

import copy
from typing import Any

import yaml
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _effective,
    _licences,
    _plan_document,
    _recorded,
    _rules,
)

from tests.unit.plugins.module_utils.settings_files import DECLARED, ROOT, effective, given, plan_of

EXAMPLE = yaml.safe_load((ROOT / "docs" / "examples" / "two-sparks.yml").read_text())
HOSTS = ("spark-head", "spark-worker")


def golden(release: str) -> dict[str, Any]:
    """What is written down of a release; a key that is null there is absent in a document."""
    golden_ = yaml.safe_load((ROOT / "tests" / "goldens" / f"tensorfold-{release}.yml").read_text())
    ranks = [{key: value for key, value in rank.items() if value is not None} for rank in golden_["ranks"]]
    return {**golden_, "ranks": ranks}


def settings_of(*hosts: str, **values: Any) -> dict[str, dict[str, Any]]:
    """The effective settings of hosts with the engine TensorFold."""
    return effective(*(hosts or HOSTS), engine="tensorfold", **values)


def one(**values: Any) -> dict[str, Any]:
    """The effective settings of the head of two."""
    return settings_of(**values)[HOSTS[0]]


def refused(*hosts: str, **values: Any) -> dict[str, str]:
    """What the rules refuse of values that all hosts were given, the problem by setting."""
    hosts = hosts or HOSTS
    values = {"engine": "tensorfold", **values}
    mistakes = _rules.check(hosts, effective(*hosts, **values), {host: given(**values) for host in hosts})
    return {mistake.subject.removeprefix("sparkpair_"): mistake.problem for mistake in mistakes}


def plan(facts: dict[str, Any] | None = None, hosts: tuple[str, ...] = HOSTS, **values: Any) -> dict[str, Any]:
    """The plan of two Sparks, or of others with their facts."""
    recorded = copy.deepcopy(facts or EXAMPLE)
    assert _recorded.check(recorded, hosts) == []
    settings = settings_of(*hosts, **values)
    head = settings[hosts[0]]
    origins = _effective.origins(DECLARED.values(), given(engine="tensorfold", **values), head, {})
    licences = [licence.as_data() for licence in _licences.apply_to(head)]
    return _plan_document.from_recorded({**plan_of(settings), "licences": licences}, settings, origins, recorded)
