# SPDX-License-Identifier: Apache-2.0
"""A finished model as a checkpoint: the engine computes what the twin does, and it is as large as the plan says."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from sparkpair.checkpoint.manifest import MANIFEST_NAME
from sparkpair.checkpoint.miniature import place_token_ids
from sparkpair.checkpoint.miniature_drafter import write_drafter
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.errors import UserError
from sparkpair.info import describe
from sparkpair.logits import all_logits, load_rank
from sparkpair.model.config import load_document
from training import experts, state
from training.export import export
from training.names import checkpoint_tensors, load_tensors
from training.plan import model_document, stored_bytes
from training.quantise import quantise
from training.train import Run, Settings
from training.twin.batch import text_batch
from training.twin.model import Twin
from training.vocabulary import write_text_files

from tests.engine.model.conftest import random_ids
from tests.engine.trained.small import drawn

TOLERANCE = 2e-4
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def checkpoint(finished: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    target = tmp_path_factory.mktemp("checkpoint")
    export(finished, target)
    return target


def test_every_tensor_is_the_trained_one_rounded_as_a_checkpoint_stores_it(
    finished: pathlib.Path, checkpoint: pathlib.Path
) -> None:
    stored = Checkpoint(checkpoint)
    trained = checkpoint_tensors(Run(Settings(work=finished, minutes=0.0, plan=1.0, size="tiny")).model, frozen=False)
    packed = experts.read(finished)
    assert set(stored.entries) == set(trained) | set(packed)
    assert all(torch.equal(stored.read(name), tensor) for name, tensor in packed.items())
    for name, tensor in trained.items():
        assert torch.equal(stored.read(name), tensor.to(stored.read(name).dtype)), name
    kinds = {stored.read(name).dtype for name in trained}
    assert kinds == {torch.bfloat16, torch.float32}


@torch.no_grad()
def test_the_engine_computes_what_the_twin_does_with_decoded_experts(checkpoint: pathlib.Path) -> None:
    stored = Checkpoint(checkpoint)
    tensors = {name: stored.read(name) for name in stored.entries}
    twin = Twin(load_document(checkpoint)).eval()
    load_tensors(twin, tensors | experts.decoded(tensors))
    ids = random_ids(4, 150)
    found = twin.logits(twin(text_batch(ids, 192)).hidden)[0, : len(ids)]
    expected = all_logits(load_rank(checkpoint, SoloGroup()), ids, step=False)
    assert expected.std() > 0.5
    assert (found - expected).abs().max() < TOLERANCE


def test_the_whole_size_takes_what_the_plan_says(tmp_path: pathlib.Path) -> None:
    document = model_document("full")
    text = tmp_path / "work" / "text"
    text.mkdir(parents=True)
    place_token_ids(document, write_text_files(text, document["text_config"]["vocab_size"], sample=600))
    (text / "config.json").write_text(json.dumps(document), encoding="utf-8")
    state.save(tmp_path / "work", Twin(document), None, state.Progress())
    quantise(tmp_path / "work", tmp_path / "finished", encoder=drawn)
    sizes = export(tmp_path / "finished", tmp_path / "target")
    planned = stored_bytes("full")
    assert sizes["weights"] == pytest.approx(planned["model"], rel=1e-3)
    assert sizes["text"] <= planned["text"]
    files = [path for path in (tmp_path / "target").iterdir() if path.suffix == ".safetensors"]
    assert len(files) > 1
    assert max(path.stat().st_size for path in files) < 10e6


def test_a_drafter_is_taken_in_under_the_one_manifest(
    finished: pathlib.Path, checkpoint: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    write_drafter(tmp_path / "drafter", checkpoint, seed=1)
    export(finished, tmp_path / "target", tmp_path / "drafter")
    manifest = json.loads((tmp_path / "target" / MANIFEST_NAME).read_text(encoding="utf-8"))
    inside = {path.name for path in (tmp_path / "target" / "drafter").iterdir()}
    assert inside == {"config.json", "model.safetensors"}
    assert {f"drafter/{name}" for name in inside} < set(manifest["files"])
    assert manifest["seed"] is None
    assert describe(tmp_path / "target")


def test_what_cannot_be_a_checkpoint_is_said(
    trained: pathlib.Path, finished: pathlib.Path, checkpoint: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    target = tmp_path / "target"
    with pytest.raises(UserError, match=r"holds no experts.safetensors: encode its experts first"):
        export(trained, target)
    with pytest.raises(UserError, match="is not empty"):
        export(finished, checkpoint)
    work = tmp_path / "work"
    shutil.copytree(finished, work)
    kept = load_file(str(work / experts.EXPERTS))
    name = next(name for name in kept if name.endswith(".suh"))
    save_file(kept | {name: torch.full_like(kept[name], torch.inf)}, str(work / experts.EXPERTS))
    with pytest.raises(UserError, match=f"{name} holds numbers that are not finite"):
        export(work, target)
    (work / "text" / "config.json").unlink()
    with pytest.raises(UserError, match="bring the text files"):
        export(work, target)
    assert not target.exists()
