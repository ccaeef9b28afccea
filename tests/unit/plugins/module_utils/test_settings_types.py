# SPDX-License-Identifier: Apache-2.0
"""A value is taken as it is meant, or refused: nothing is bent to fit a type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _types
from ansible_collections.sparkpair.serving.plugins.module_utils._types import Refused
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("convert", "value", "meant"),
    [
        (_types.to_int, 4, 4),
        (_types.to_int, "4", 4),
        (_types.to_int, "-1", -1),
        (_types.to_float, 2, 2.0),
        (_types.to_float, "2.5", 2.5),
        (_types.to_float, "1e3", 1000.0),
        (_types.to_bool, True, True),
        (_types.to_bool, "yes", True),
        (_types.to_bool, "False", False),
        (_types.to_bool, "off", False),
        (_types.to_bool, 1, True),
        (_types.to_str, "a b", "a b"),
        (_types.to_str, 7, "7"),
    ],
)
def test_what_can_only_mean_one_thing_is_taken(convert: Callable[[Any], Any], value: Any, meant: Any) -> None:
    result = convert(value)
    assert result == meant
    assert type(result) is type(meant)


@pytest.mark.parametrize(
    ("convert", "value"),
    [
        (_types.to_int, "four"),
        (_types.to_int, 1.5),
        (_types.to_int, "4.0"),
        (_types.to_int, "1_000"),
        (_types.to_int, True),
        (_types.to_int, ""),
        (_types.to_int, None),
        (_types.to_float, "much"),
        (_types.to_float, "nan"),
        (_types.to_float, float("inf")),
        (_types.to_float, "1e999"),
        (_types.to_float, False),
        (_types.to_bool, "maybe"),
        (_types.to_bool, 7),
        (_types.to_bool, 1.0),
        (_types.to_bool, []),
        (_types.to_str, True),
        (_types.to_str, 1.10),
        (_types.to_str, ["a"]),
        (_types.to_dict, "a=b"),
        (_types.to_dict, [1]),
        (_types.to_dict, '{"a": '),
    ],
)
def test_what_could_mean_something_else_is_refused(convert: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(Refused):
        convert(value)


def test_a_list_may_come_as_json_text() -> None:
    assert _types.to_list('["--a", "b"]', _types.to_str) == ["--a", "b"]


@pytest.mark.parametrize("value", ["--a b", "a,b", {"a": 1}, "[1, ", 5])
def test_text_that_is_no_json_list_is_no_list(value: Any) -> None:
    with pytest.raises(Refused):
        _types.to_list(value, _types.to_str)


def test_the_mistake_in_a_list_is_named_by_its_position() -> None:
    with pytest.raises(Refused, match=r"^\[1\]: true is not text"):
        _types.to_list(["a", True], _types.to_str)


@given(st.integers())
def test_every_whole_number_survives_being_written_as_text(number: int) -> None:
    assert _types.to_int(str(number)) == number


@pytest.mark.parametrize("value", ["192.0.2.1", "0.0.0.0", "127.0.0.1"])
def test_ipv4_addresses_are_taken(value: str) -> None:
    assert _types.check_ipv4(value) == value


@pytest.mark.parametrize("value", ["spark-1", "192.0.2", "192.0.2.256", "::1", "192.0.2.1/24", "192.0.2.01"])
def test_what_is_no_ipv4_address_is_refused(value: str) -> None:
    with pytest.raises(Refused, match="IPv4"):
        _types.check_ipv4(value)


def test_an_environment_has_names_and_text() -> None:
    assert _types.check_environment({"OMP_NUM_THREADS": 4, "A": "b"}) == {"OMP_NUM_THREADS": "4", "A": "b"}


@pytest.mark.parametrize("value", [{"A B": "x"}, {"1A": "x"}, {"A": True}, {"A": 1.1}, {"A": None}])
def test_an_environment_that_a_process_could_not_have_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        _types.check_environment(value)
