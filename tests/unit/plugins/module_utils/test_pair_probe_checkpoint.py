# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is complete only when every file is what it should be; anything else is named file by file."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _checkpoint


def safetensors(payload: int) -> bytes:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [payload], "data_offsets": [0, payload]}})
    return struct.pack("<Q", len(header)) + header.encode() + bytes(payload)


@pytest.fixture
def miniature(tmp_path: Path) -> Path:
    files = {"config.json": b"{}", "model.safetensors": safetensors(100)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    listed = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "seed": 3, "files": listed, "digest": "d1"}))
    return tmp_path


def test_a_complete_miniature_has_its_manifests_digest(miniature: Path) -> None:
    seen = _checkpoint.miniature(str(miniature), 3)
    assert (seen["state"], seen["digest"], seen["problems"]) == ("complete", "d1", [])


def test_a_directory_that_is_not_there_is_absent(tmp_path: Path) -> None:
    for look in (lambda path: _checkpoint.miniature(path, 3), _checkpoint.given):
        assert look(str(tmp_path / "none"))["state"] == "absent"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda path: (path / "model.safetensors").write_bytes(b"x"), "model.safetensors has 1 bytes instead of"),
        (lambda path: (path / "config.json").write_bytes(b"[]"), "config.json has other content"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json cannot be read"),
        (lambda path: (path / "manifest.json").write_text("{}"), "manifest.json is no manifest"),
        (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json is no manifest"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is no manifest"),
    ],
)
def test_a_damaged_miniature_names_the_file(miniature: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(miniature)
    seen = _checkpoint.miniature(str(miniature), 3)
    assert (seen["state"], seen["digest"]) == ("damaged", "")
    assert words in seen["problems"][0]


def test_the_miniature_of_another_seed_is_not_taken_for_the_wanted_one(miniature: Path) -> None:
    assert _checkpoint.miniature(str(miniature), 4)["state"] == "damaged"


def test_a_trained_miniature_is_complete_only_for_the_engine_that_it_came_with(miniature: Path) -> None:
    manifest = json.loads((miniature / "manifest.json").read_text())
    assert _checkpoint.miniature(str(miniature), None)["problems"] == ["manifest.json speaks of seed 3, not of None"]
    (miniature / "manifest.json").write_text(json.dumps({**manifest, "seed": None}))
    assert _checkpoint.miniature(str(miniature), None)["state"] == "complete"
    another = ["it came with another engine than the one that is there now"]
    assert _checkpoint.miniature(str(miniature), None, "e1")["problems"] == another
    (miniature / _checkpoint.ORIGIN).write_text("e1\n")
    assert _checkpoint.miniature(str(miniature), None, "e1")["state"] == "complete"
    assert _checkpoint.miniature(str(miniature), None, "e2")["problems"] == another
    assert _checkpoint.miniature(str(miniature), 3, "e2")["problems"] == ["manifest.json speaks of seed None, not of 3"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "glm5_next"}')
    for name in ("m-1.safetensors", "m-2.safetensors"):
        (tmp_path / name).write_bytes(safetensors(50))
    weights = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(weights))
    return tmp_path


def test_a_complete_checkpoint_of_ones_own_is_complete_and_not_written_to(own: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in own.iterdir())
    seen = _checkpoint.given(str(own))
    assert (seen["state"], seen["problems"]) == ("complete", [])
    assert sorted((path.name, path.stat().st_mtime_ns) for path in own.iterdir()) == before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "m-2.safetensors").unlink(), "m-2.safetensors cannot be read: No such file"),
        (lambda path: (path / "m-2.safetensors").write_bytes(safetensors(50)[:-1]), "m-2.safetensors has"),
        (lambda path: (path / "m-2.safetensors").write_bytes(safetensors(50) + b"x"), "m-2.safetensors has"),
        (lambda path: (path / "m-2.safetensors").write_bytes(safetensors(50)[:20]), "ends inside its header"),
        (lambda path: (path / "m-2.safetensors").write_bytes(b"abc"), "shorter than the length of its header"),
        (lambda path: (path / "m-2.safetensors").write_bytes(b"\xff" * 40), "header would be too long"),
        (lambda path: (path / "m-2.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]"), "is no safetensors file"),
        (lambda path: (path / "config.json").unlink(), "config.json cannot be read"),
        (lambda path: (path / "config.json").write_text("{"), "config.json is not valid JSON"),
        (lambda path: (path / "model.safetensors.index.json").unlink(), "neither model.safetensors.index.json nor"),
        (lambda path: (path / "model.safetensors.index.json").write_text("{}"), "is no index of shards"),
    ],
)
def test_an_incomplete_checkpoint_names_the_file(own: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(own)
    seen = _checkpoint.given(str(own))
    assert (seen["state"], seen["digest"]) == ("damaged", "")
    assert any(words in problem for problem in seen["problems"])


def test_all_incomplete_files_are_named_not_the_first_only(own: Path) -> None:
    (own / "m-1.safetensors").unlink()
    (own / "m-2.safetensors").unlink()
    assert len(_checkpoint.given(str(own))["problems"]) == 2


def test_other_weights_have_another_digest(own: Path) -> None:
    before = _checkpoint.given(str(own))["digest"]
    (own / "m-2.safetensors").write_bytes(safetensors(60))
    assert _checkpoint.given(str(own))["digest"] != before


def test_a_checkpoint_in_one_file_needs_no_index(own: Path) -> None:
    (own / "model.safetensors.index.json").unlink()
    (own / "model.safetensors").write_bytes(safetensors(9))
    assert _checkpoint.given(str(own))["state"] == "complete"


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_s11_what_only_the_api_needs_is_missed_on_the_host_that_has_it(own: Path, name: str) -> None:
    for text in ("tokenizer.json", "chat_template.jinja"):
        (own / text).write_text("{}")
    before = _checkpoint.given(str(own), serves=True)
    assert (before["state"], before["problems"]) == ("complete", [])
    (own / name).unlink()
    found = _checkpoint.given(str(own), serves=True)
    assert found["problems"] == [f"{name}, which the API needs, cannot be read: No such file or directory"]
    other = _checkpoint.given(str(own))
    assert (other["state"], other["digest"]) == ("complete", before["digest"])
    (own / name).touch()
    assert _checkpoint.given(str(own), serves=True)["problems"] == [f"{name} is empty"]
