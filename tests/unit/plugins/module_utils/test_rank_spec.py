# SPDX-License-Identifier: Apache-2.0
"""The hash of a rank's document."""

from __future__ import annotations

import hashlib

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import canonical_json, spec_hash


def test_the_order_of_keys_does_not_count():
    assert spec_hash({"a": 1, "b": {"c": 2, "d": 3}}) == spec_hash({"b": {"d": 3, "c": 2}, "a": 1})


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": "1"}, {"a": 1}), ({"a": [1, 2]}, {"a": [2, 1]}), ({"a": None}, {}), ({"a": 1}, {"a": True})],
    ids=["type", "order of a list", "null", "truth"],
)
def test_what_differs_has_another_hash(one, other):
    assert spec_hash(one) != spec_hash(other)


def test_the_hash_is_that_of_the_text_in_utf8():
    assert canonical_json({"ü": ["x", 1.5, None, True]}) == '{"ü":["x",1.5,null,true]}'
    assert spec_hash({"ü": 1}) == hashlib.sha256('{"ü":1}'.encode()).hexdigest()


def test_a_key_that_json_would_rename_is_refused_with_its_path():
    with pytest.raises(TypeError, match=r"document\.env\[0\]: the key 1 is not a string"):
        spec_hash({"env": [{1: "x"}]})


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_refused(number):
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": number})
