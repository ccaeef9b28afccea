# SPDX-License-Identifier: Apache-2.0
"""After training: experts become EXL3, and the rest goes on learning around them."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sparkpair.errors import UserError
from training import experts, state
from training.mixture import Rows
from training.names import checkpoint_tensors
from training.quantise import encode_experts, quantise
from training.train import Run, Settings
from training.twin.batch import Batch

from tests.engine.trained.small import drawn, small_batch

torch.set_num_threads(1)


def run_in(directory: pathlib.Path, **settings: Any) -> Run:
    batch = small_batch(directory)

    def same(kind: Rows) -> Iterator[Batch]:
        while True:
            yield batch

    usual = {"minutes": 5.0, "plan": 1e6, "size": "tiny", "length": 128, "log_every": 0.0}
    return Run(Settings(work=directory, **(usual | settings)), same)


def test_an_encoded_expert_is_near_the_trained_one_and_does_not_depend_on_the_others() -> None:
    matrix = torch.randn(128, 128, generator=torch.Generator().manual_seed(1)) * 0.05
    name = "model.language_model.layers.1.mlp.experts.0.up_proj"
    tensors = encode_experts({f"{name}.weight": matrix}, 4, seed=1)
    assert sorted(tensors) == [f"{name}.{leaf}" for leaf in ("mcg", "suh", "svh", "trellis")]
    (found,) = experts.decoded(tensors).values()
    assert (found - matrix).norm() < 0.08 * matrix.norm()
    others = {name.replace("up", "gate") + ".weight": matrix, f"{name}.weight": matrix}
    signs = [encode_experts(some, 4, 1, drawn)[f"{name}.trellis"] for some in (others, {f"{name}.weight": matrix})]
    assert torch.equal(*signs)
    with pytest.raises(ValueError, match="is no matrix of a routed expert"):
        encode_experts({"lm_head.weight": matrix}, 4, seed=1)


def test_finishing_leaves_the_experts_to_the_bit_and_trains_the_rest(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    work = tmp_path / "work"
    shutil.copytree(finished, work)
    run = run_in(work, steps=12, rate=1e-2)
    before = {name: tensor.clone() for name, tensor in checkpoint_tensors(run.model).items()}
    fixed = experts.decoded(experts.read(work))
    told: list[dict[str, Any]] = []
    run.train(told.append)
    assert told[-1]["text"] < 0.8 * told[0]["text"]
    after = checkpoint_tensors(run.model)
    assert len(fixed) == 18
    assert all(torch.equal(after[name], matrix) for name, matrix in fixed.items())
    still = [name for name in after if name not in fixed and torch.equal(after[name], before[name])]
    # No picture was seen, and what starts at zero and has no gradient may stay.
    assert [name for name in still if ".visual." not in name] == []
    again = run_in(work, steps=1)
    assert again.progress.steps == 12
    more: list[dict[str, Any]] = []
    again.train(more.append)
    assert more[0]["text"] < 1.1 * told[-1]["text"]


def test_what_was_carried_without_the_optimiser_has_the_same_experts(
    finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert not (finished / state.WHOLE).exists()
    run = run_in(finished)
    fixed = experts.decoded(experts.read(finished))
    own = checkpoint_tensors(run.model)
    assert all(torch.equal(own[name], matrix) for name, matrix in fixed.items())
    state.save(tmp_path, run.model, None, run.progress)
    with pytest.raises(KeyError, match="experts"):
        state.load(tmp_path, run.model, None)
    assert sum(file.stat().st_size for file in tmp_path.glob("weights-*")) < 2e6


def test_a_run_that_is_killed_has_saved_on_the_way(finished: pathlib.Path, tmp_path: pathlib.Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(finished, work)

    def killed(figures: dict[str, Any]) -> None:
        if figures["step"] == 4:
            raise KeyboardInterrupt

    run = run_in(work, save_every=0.0)
    with pytest.raises(KeyboardInterrupt):
        run.train(killed)
    assert run_in(work).progress.steps == 3
    (work / state.WHOLE).unlink()
    assert run_in(work).progress.steps == 3


def test_what_cannot_be_encoded_is_said(finished: pathlib.Path, work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="is no directory of training"):
        quantise(tmp_path, tmp_path / "target")
    with pytest.raises(UserError, match="its experts are EXL3 already"):
        quantise(finished, tmp_path / "target")
    with pytest.raises(UserError, match="is not empty"):
        quantise(work, finished, encoder=drawn)
    shutil.copytree(work / "text", tmp_path / "untrained" / "text")
    with pytest.raises(UserError, match="holds no weights: train first"):
        quantise(tmp_path / "untrained", tmp_path / "target")
    assert not (tmp_path / "target").exists()
