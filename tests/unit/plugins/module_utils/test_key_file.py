# SPDX-License-Identifier: Apache-2.0
"""The key file as the probes read it: the same lines as the engine's, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _key_file


def a_file(path: Path, content: str, mode: int = 0o600) -> str:
    file = path / "keys"
    file.write_text(content)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize(
    ("content", "key"),
    [("sk-1", "sk-1"), ("# old\n\n  alice: sk-2 \nsk-3\n", "sk-2"), ("bob:x:y\r\n", "x:y")],
)
def test_the_first_key_is_taken(tmp_path: Path, content: str, key: str) -> None:
    path = a_file(tmp_path, content)
    assert _key_file.first_key(path) == key
    assert _key_file.problem_of(path) == ""
    assert _key_file.authorization(key) == {"Authorization": f"Bearer {key}"}


def test_no_path_is_no_key() -> None:
    assert _key_file.first_key("") is None
    assert _key_file.authorization(None) == {}


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [("secret", 0o644, "mode 0644"), ("# nothing", 0o600, "has no key"), ("", 0o600, "has no key")],
)
def test_what_is_wrong_is_said_without_quoting_the_file(tmp_path: Path, content: str, mode: int, problem: str) -> None:
    told = _key_file.problem_of(a_file(tmp_path, content, mode))
    assert problem in told
    assert "secret" not in told


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    assert f"{tmp_path}/none cannot be read: No such file" in _key_file.problem_of(f"{tmp_path}/none")
    assert "Is a directory" in _key_file.problem_of(str(tmp_path))
