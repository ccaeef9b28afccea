# SPDX-License-Identifier: Apache-2.0
"""AWX asks for settings as they are declared, and an answer left empty changes nothing."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.sparkpair.serving.plugins.filter.survey import survey
from ansible_collections.sparkpair.serving.plugins.module_utils import _settings

from tests.unit.plugins.module_utils.settings_files import DECLARED, LIMITS, SPECS, given


def test_a_question_has_help_choices_and_range_of_its_setting() -> None:
    names = ["sparkpair_context", "sparkpair_kv", "sparkpair_vision", "sparkpair_served_name"]
    window, cache, pictures, name = survey(SPECS, LIMITS, names, "site")["spec"]
    assert (window["type"], window["min"], window["max"]) == ("integer", 0, 1048576)
    assert "tokens" in window["question_description"]
    assert (cache["type"], cache["choices"]) == ("multiplechoice", ["fp8", "bf16"])
    assert (pictures["type"], pictures["choices"]) == ("multiplechoice", ["true", "false"])
    assert name["type"] == "text"
    # Whoever asks nothing gets what the inventory says.
    assert {(one["default"], one["required"]) for one in (window, cache, pictures, name)} == {("", False)}


def test_a_setting_that_is_not_declared_is_refused_by_name() -> None:
    with pytest.raises(AnsibleFilterError, match="sparkpair_windw"):
        survey(SPECS, LIMITS, ["sparkpair_windw"], "site")


def test_an_answer_left_empty_is_no_answer() -> None:
    answers = given(context="", thinking="", kv="", served_name="", stop_timeout="60", engine="tensorfold")
    settings, mistakes = _settings.resolve(DECLARED, {"a": _settings.answered(DECLARED, answers)})
    assert mistakes == []
    assert (settings["a"]["context"], settings["a"]["thinking"], settings["a"]["kv"]) == (None, None, "fp8")
    assert settings["a"]["stop_timeout"] == 60
