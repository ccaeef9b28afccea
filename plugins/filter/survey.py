# SPDX-License-Identifier: Apache-2.0
"""Surveys of AWX from the declared settings, so that a setting is described in one place only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: survey
short_description: Make an AWX survey of declared settings
version_added: 0.2.0
description:
  - Turns settings of C(roles/settings/meta/argument_specs.yml) into the questions of a survey, with their help, choices
    and ranges. No question needs an answer.
options:
  _input:
    description: The parsed argument specs of the role P(sparkpair.serving.settings#role).
    type: dict
    required: true
  limits:
    description: The parsed limits.yml beside them.
    type: dict
    required: true
  names:
    description: The settings to ask for, in order.
    type: list
    elements: str
    required: true
  title:
    description: The survey's name.
    type: str
    required: true
author:
  - The sparkpair maintainers (@sparkpair)
"""

EXAMPLES = r"""
- name: A survey with one question
  ansible.builtin.debug:
    msg: "{{ specs | sparkpair.serving.survey(limits, ['sparkpair_context'], 'Site') }}"
"""

RETURN = r"""
_value:
  description: The survey, as a job template takes it.
  type: dict
"""

_TYPES = {"int": "integer", "float": "float", "bool": "multiplechoice"}


def survey(specs: Mapping[str, Any], limits: Mapping[str, Any], names: Sequence[str], title: str) -> dict[str, Any]:
    """Return a survey with a question for each of `names`. Raises AnsibleFilterError for one that is not declared."""
    options = specs["argument_specs"]["main"]["options"]
    unknown = [name for name in names if name not in options]
    if unknown:
        raise AnsibleFilterError(f"there are no such settings: {', '.join(unknown)}")
    questions = [_question(name, options[name], limits.get(name) or {}) for name in names]
    return {"name": title, "description": "Leave empty what the inventory decides.", "spec": questions}


def _question(name: str, option: Mapping[str, Any], limit: Mapping[str, Any]) -> dict[str, Any]:
    choices = list(option.get("choices") or [])
    if option["type"] == "bool":
        choices = ["true", "false"]
    question = {
        "question_name": name.removeprefix("sparkpair_").replace("_", " "),
        "question_description": " ".join(option["description"]),
        "variable": name,
        "required": False,
        "type": "multiplechoice" if choices else _TYPES.get(option["type"], "text"),
        # An answer would win over the inventory, so that none is given beforehand.
        "default": "",
        "choices": choices,
    }
    if question["type"] in ("integer", "float"):
        question.update(min=limit.get("min", 0), max=limit.get("max", 2**31 - 1))
    return question


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return them by name."""
        return {"survey": survey}
