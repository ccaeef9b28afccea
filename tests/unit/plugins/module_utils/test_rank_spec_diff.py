# SPDX-License-Identifier: Apache-2.0
"""The difference shows everything but secrets, and that a secret changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._spec_diff import describe, secret_names, secret_values


def test_a_secret_is_hidden_and_its_change_is_told(tmp_path: Path):
    old = {"argv": ["serve"], "env": {"HF_TOKEN": "one", "PIN": "four", "A": "1"}}
    (tmp_path / "spec.json").write_text(json.dumps(old))
    new = {"argv": ["serve"], "env": {"HF_TOKEN": "two", "PIN": "four", "A": "2"}}
    diff = describe(str(tmp_path), "running", new, secret_names(new["env"], ["PIN"]))
    assert json.loads(diff["before"])["spec"]["env"] == {"HF_TOKEN": "(secret)", "PIN": "(secret)", "A": "1"}
    assert json.loads(diff["after"])["spec"]["env"] == {"HF_TOKEN": "(secret, changed)", "PIN": "(secret)", "A": "2"}


def test_a_secret_of_the_old_document_is_hidden_when_nothing_is_left(tmp_path: Path):
    (tmp_path / "spec.json").write_text(json.dumps({"argv": ["serve"], "env": {"HF_TOKEN": "one"}}))
    diff = describe(str(tmp_path), "running", None, set())
    assert "one" not in diff["before"]
    assert json.loads(diff["after"]) == {"state": "absent"}


@pytest.mark.parametrize("old", ["", "[]", "{"], ids=["empty", "list", "cut"])
def test_an_unreadable_old_document_is_shown_as_none(tmp_path: Path, old):
    (tmp_path / "spec.json").write_text(old)
    assert json.loads(describe(str(tmp_path), "absent", {"argv": ["x"]}, set())["before"]) == {"state": "absent"}


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "my_password", "Client_Secret"])
def test_a_name_that_looks_secret_is(name):
    assert secret_values({"env": {name: "hf_12345"}}, ()) == {"hf_12345"}


@pytest.mark.parametrize("spec", [None, {}, {"env": None}, {"env": []}, {"env": {"KEYS": "1"}}, {"env": {"_KEY": "1"}}])
def test_what_holds_no_secret_hides_nothing(spec):
    assert secret_values(spec, ()) == set()
