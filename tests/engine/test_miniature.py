# SPDX-License-Identifier: Apache-2.0
"""The miniature: same seed, same bytes; nothing half-written; overrides checked by name."""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import sys

import pytest
from sparkpair.checkpoint.manifest import MANIFEST_NAME
from sparkpair.checkpoint.miniature import miniature_document, write_miniature
from sparkpair.errors import UserError
from sparkpair.model.config import parse_text_config


def contents(directory: pathlib.Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_the_same_seed_writes_the_same_bytes_and_another_seed_does_not(tmp_path: pathlib.Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        write_miniature(tmp_path / name, seed=seed, overrides={})
    first, second, other = (contents(tmp_path / name) for name in "abc")
    assert first == second
    assert {name for name in first if first[name] != other[name]} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        MANIFEST_NAME,
    }


def test_the_manifest_lists_every_other_file_with_size_and_hash(tmp_path: pathlib.Path) -> None:
    write_miniature(tmp_path / "m", seed=1, overrides={})
    manifest = json.loads((tmp_path / "m" / MANIFEST_NAME).read_text())
    listed = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
    found = {
        path.name: (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in (tmp_path / "m").iterdir()
        if path.name != MANIFEST_NAME
    }
    assert listed == found
    assert 10e6 < sum(size for size, _ in found.values()) < 30e6


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        write_miniature(tmp_path, seed=1, overrides={})
    assert contents(tmp_path).keys() == {"mine.txt"}


def test_a_full_disk_is_named_and_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    # A limit on the file size is the full disk of a process that may not mount one.
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6));"
        "from sparkpair.cli import main; sys.exit(main(['miniature', sys.argv[1]]))"
    )
    target = tmp_path / "m"
    result = subprocess.run([sys.executable, "-c", script, str(target)], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {target} cannot be written: ")
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"hidden_size": 64}, "hidden_size: expected an object with text_config"),
        ({"text_config": {"hiden_size": 64}}, r"text_config\.hiden_size is not a field"),
        ({"text_config": {"index_topk": 7}}, "index_topk is 7, expected a multiple of index_kpool"),
        ({"text_config": {"num_hidden_layers": "8"}}, "num_hidden_layers is '8', expected a whole number"),
        ({"text_config": {"layer_types": ["linear"] * 8}}, "layer_types is .*expected a list of 8 words"),
        ({"text_config": {"vocab_size": 100}}, "vocab_size 100 is too small"),
        ({"text_config": {"num_experts_per_tok": 9}}, "num_experts_per_tok is 9, expected at most n_routed_experts"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_field(
    tmp_path: pathlib.Path, overrides: dict[str, object], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        write_miniature(tmp_path / "m", seed=1, overrides=overrides)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["deepseek_sparse_attention", "indexed_attention", "full_attention"])
def test_all_three_words_for_dsa_layers_are_read(word: str) -> None:
    document = miniature_document({"text_config": {"layer_types": [word, *["linear_attention"] * 7]}})
    assert parse_text_config(document, "here").attention == ("dsa", *["kda"] * 7)


def test_the_schedule_follows_the_mod_4_rule_when_absent() -> None:
    config = parse_text_config(miniature_document({}), "here")
    assert [index for index, kind in enumerate(config.attention) if kind == "dsa"] == [3, 7]
    assert config.feed_forward == ("dense",) * 3 + ("sparse",) * 5


@pytest.mark.parametrize("name", ["qk_rope_head_dim", "tie_word_embeddings"])
def test_a_switch_without_code_behind_it_is_refused(name: str) -> None:
    document = miniature_document({})
    document["text_config"][name] = 64
    with pytest.raises(UserError, match=f"{name} is 64"):
        parse_text_config(document, "here")
