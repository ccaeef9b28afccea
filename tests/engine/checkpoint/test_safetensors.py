# SPDX-License-Identifier: Apache-2.0
"""Damaged and incomplete checkpoints are refused by the name of the file, before anything is loaded."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest
import torch
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.checkpoint.safetensors import INDEX_NAME, Checkpoint
from sparkpair.errors import UserError

LAYERS = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("checkpoint") / "miniature"
    write_miniature(directory, seed=1, overrides={})
    return directory


@pytest.fixture
def copy(original: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(original, tmp_path / "copy"))


def test_a_slice_equals_the_slice_of_the_whole_tensor(original: pathlib.Path) -> None:
    checkpoint = Checkpoint(original)
    name = "model.language_model.layers.3.self_attn.o_proj.weight"
    assert torch.equal(checkpoint.read(name, [slice(0, 256), slice(32, 96)]), checkpoint.read(name)[:, 32:96])


@pytest.mark.parametrize("lost", [1, 1000, 17_000_000], ids=["one byte", "a kilobyte", "most of it"])
def test_a_truncated_file_is_named(copy: pathlib.Path, lost: int) -> None:
    path = copy / LAYERS
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - lost)
    with pytest.raises(UserError, match=rf"{LAYERS}.* truncated.*again"):
        Checkpoint(copy)


def test_a_file_cut_inside_its_header_is_named(copy: pathlib.Path) -> None:
    with (copy / LAYERS).open("r+b") as file:
        file.truncate(100)
    with pytest.raises(UserError, match=rf"{LAYERS} is truncated or not a safetensors file"):
        Checkpoint(copy)


def test_a_file_that_grew_is_named(copy: pathlib.Path) -> None:
    with (copy / LAYERS).open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match=rf"{LAYERS}.*too long"):
        Checkpoint(copy)


def test_a_damaged_header_is_named(copy: pathlib.Path) -> None:
    with (copy / LAYERS).open("r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff\xff")
    with pytest.raises(UserError, match=rf"{LAYERS} has a damaged header"):
        Checkpoint(copy)


def test_missing_files_are_listed(copy: pathlib.Path) -> None:
    (copy / LAYERS).unlink()
    with pytest.raises(UserError, match=rf"1 of 2 weight files are missing: {LAYERS}"):
        Checkpoint(copy)


def test_a_directory_without_weights_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match=r"holds no \.safetensors file"):
        Checkpoint(tmp_path)


def test_an_index_that_promises_more_than_the_file_holds_is_refused(copy: pathlib.Path) -> None:
    path = copy / INDEX_NAME
    index = json.loads(path.read_text())
    index["weight_map"]["model.language_model.layers.99.nothing"] = LAYERS
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"does not hold model\.language_model\.layers\.99\.nothing"):
        Checkpoint(copy)


def test_an_index_that_is_not_json_is_refused(copy: pathlib.Path) -> None:
    (copy / INDEX_NAME).write_text("{")
    with pytest.raises(UserError, match="is not a checkpoint index"):
        Checkpoint(copy)


def test_a_missing_tensor_is_named(original: pathlib.Path) -> None:
    with pytest.raises(UserError, match=r"tensor model\.nothing is missing"):
        Checkpoint(original).read("model.nothing")


def test_one_changed_byte_changes_the_digest(copy: pathlib.Path) -> None:
    before = Checkpoint(copy).digest()
    path = copy / LAYERS
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert Checkpoint(copy).digest() != before
