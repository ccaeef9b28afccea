# SPDX-License-Identifier: Apache-2.0
"""From what people wrote to effective settings: defaults, ranges, unknown names, and all mistakes at once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _settings
from ansible_collections.sparkpair.serving.plugins.module_utils._mistakes import Given, Mistake, render

from tests.unit.plugins.module_utils.settings_files import DECLARED, LIMITS, SPECS, given


def problems(**values: Any) -> list[str]:
    """What is wrong with values set for one host."""
    return [mistake.problem for mistake in _settings.resolve(DECLARED, {"one": given(**values)})[1]]


def test_every_default_is_sound_by_its_own_declaration() -> None:
    for name, declaration in DECLARED.items():
        if declaration.default not in (None, "", [], {}):
            assert _settings.convert(declaration, Given(declaration.default, "")) == declaration.default, name


def test_every_setting_has_a_help_text_and_an_explicit_default() -> None:
    for name, option in SPECS["argument_specs"]["main"]["options"].items():
        assert option["description"], name
        assert "default" in option, name


def test_every_number_has_a_range() -> None:
    for name, declaration in DECLARED.items():
        if declaration.type in ("int", "float"):
            assert declaration.minimum is not None, name
            assert declaration.maximum is not None, name


def test_limits_of_a_setting_that_does_not_exist_are_found() -> None:
    with pytest.raises(ValueError, match="sparkpair_ports"):
        _settings.declarations(SPECS, {**LIMITS, "sparkpair_ports": {"min": 1}})


def test_a_misspelt_limit_is_found() -> None:
    with pytest.raises(ValueError, match="minimum"):
        _settings.declarations(SPECS, {"sparkpair_port": {"minimum": 1}})


def test_a_default_that_is_derived_says_so_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="sparkpair_parallel"):
        _settings.declarations(SPECS, {**LIMITS, "sparkpair_parallel": {"min": 1, "max": 8}})


@pytest.mark.parametrize(("engine", "name"), [("sparkpair", "release"), ("tensorfold", "threads")])
def test_a_setting_that_only_another_engine_understands_is_refused_by_name(engine: str, name: str) -> None:
    (mistake,) = _settings.of_another_engine(DECLARED, {"one": given(**{name: 1, "port": 1})}, engine)
    assert mistake.subject == f"sparkpair_{name}"
    assert f"sparkpair_engine is {engine}" in mistake.problem


def test_a_host_that_was_given_nothing_gets_the_defaults() -> None:
    settings, mistakes = _settings.resolve(DECLARED, {"one": {}})
    assert mistakes == []
    assert settings["one"]["port"] == 8888
    assert settings["one"]["state_dir"] == "~/.local/state/sparkpair/one"


def test_text_from_the_command_line_becomes_the_declared_type() -> None:
    settings, mistakes = _settings.resolve(
        DECLARED, {"one": given(port="9000", thinking="no", memory_reserve_gib="2", extra_args='["--x"]')}
    )
    assert mistakes == []
    assert settings["one"]["port"] == 9000
    assert settings["one"]["thinking"] is False
    assert settings["one"]["memory_reserve_gib"] == 2.0
    assert settings["one"]["extra_args"] == ["--x"]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("parallell", "sparkpair_parallel"),
        ("prot", "sparkpair_port"),
        ("masterport", "sparkpair_master_port"),
        ("statedir", "sparkpair_state_dir"),
    ],
)
def test_s16_an_unknown_setting_is_refused_with_the_nearest_known_one(wrong: str, near: str) -> None:
    assert problems(**{wrong: 1}) == [f"there is no such setting (did you mean {near}?)"]


def test_an_unknown_setting_that_is_near_to_nothing_gets_no_guess() -> None:
    assert problems(zzzz=1) == ["there is no such setting (docs/settings.md lists all settings)"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", 65536, "65536 is too large; allowed is a whole number from 0 to 65535"),
        ("port", -1, "-1 is too small; allowed is a whole number from 0 to 65535"),
        ("port", "four", '"four" is not a whole number; allowed is a whole number from 0 to 65535'),
        ("parallel", 9, "9 is too large; allowed is a whole number from 1 to 8"),
        ("display_kv_mib", 24, "24 is no multiple of 16; allowed is a whole number from 0 to 2032 in steps of 16"),
        ("draft_policy", "c5", '"c5" is no policy for DFlash2; those begin with f, for example fnc7:0.3'),
        ("container_name", "a b", '"a b" is no name for Docker: letters, digits, _ . - and a letter or digit first'),
        ("parallel", None, "it has no value; remove it to get the default, one that is derived"),
        ("engine", "vllm", '"vllm" is not among the choices; allowed is sparkpair or tensorfold'),
        ("host", "", "it is empty, and this setting needs a value"),
        ("engine_command", [], "it is empty, and this setting needs a value"),
        ("host", "localhost", '"localhost" is not an IPv4 address such as 192.0.2.1'),
        ("served_name", "a b", '"a b" may hold letters, digits and signs, but no blanks'),
        ("port", None, "it has no value; remove it to get the default, 8888"),
        ("thinking", 7, "7 is neither true nor false"),
    ],
)
def test_the_refusal_says_what_was_found_and_what_is_allowed(name: str, value: Any, words: str) -> None:
    assert problems(**{name: value}) == [words]


def test_a_template_that_fails_is_a_mistake_of_its_setting() -> None:
    failing = {"sparkpair_port": Given(None, "at x", "'nope' is undefined")}
    assert _settings.resolve(DECLARED, {"one": failing})[1] == [
        Mistake("sparkpair_port", "its template cannot be rendered: 'nope' is undefined", "at x", "one")
    ]


def test_hosts_may_differ_only_where_a_setting_says_so() -> None:
    differing = {"one": given(threads=1, port=1), "two": given(threads=2, port=2)}
    mistakes = _settings.resolve(DECLARED, differing)[1]
    assert [(mistake.subject, mistake.problem) for mistake in mistakes] == [
        ("sparkpair_port", "all hosts need the same value, but one has 1 and two has 2")
    ]


def test_a_wrong_value_on_one_host_is_not_reported_again_as_a_difference() -> None:
    mistakes = _settings.resolve(DECLARED, {"one": given(port="x"), "two": given(port=9000)})[1]
    assert [(mistake.host, mistake.subject) for mistake in mistakes] == [("one", "sparkpair_port")]


def test_all_mistakes_come_in_one_text_each_with_its_origin_and_once_for_all_hosts() -> None:
    wrong = given(port="x", prot=1)
    text = render(_settings.resolve(DECLARED, {"one": wrong, "two": wrong})[1])
    assert text.splitlines() == [
        "2 things in the settings or the inventory must be put right; nothing has been touched.",
        "1. sparkpair_prot (one, two): there is no such setting (did you mean sparkpair_port?). Set at "
        "vars.yml (prot).",
        '2. sparkpair_port (one, two): "x" is not a whole number; allowed is a whole number from 0 to 65535. Set at '
        "vars.yml (port).",
    ]
