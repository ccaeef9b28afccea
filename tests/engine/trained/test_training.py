# SPDX-License-Identifier: Apache-2.0
"""Packing, the training loop and what it keeps: documents stay apart, the loss falls, a run goes on where one ended."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import torch
from training import state
from training.mixture import Rows
from training.packing import Shape
from training.plan import MOST_BYTES, stored_bytes
from training.skills.instructions import instructions
from training.skills.pictures import pictures
from training.train import Run, Settings
from training.twin.batch import Batch

from tests.engine.trained.small import small_batch

torch.set_num_threads(1)


def test_weights_drafter_and_text_fit_into_what_the_repository_may_hold() -> None:
    assert sum(stored_bytes("full").values()) <= MOST_BYTES


def test_every_picture_token_stands_for_its_own_patches(work: pathlib.Path) -> None:
    batch = small_batch(work, (pictures, instructions), Shape(2, 256, 2))
    placed = batch.media[batch.media >= 0]
    assert placed.numel() > 0
    assert placed.unique().numel() == placed.numel()
    tokens = batch.frame.flatten()[placed * 4]
    assert (tokens >= 0).all(), "a token stands for patches that are none"
    assert tokens.unique().tolist() == list(range(int(batch.frame.max()) + 1))


def test_documents_begin_on_the_grid_and_count_only_for_themselves(work: pathlib.Path) -> None:
    batch = small_batch(work)
    begins = (batch.position == 0).nonzero()
    assert (begins[:, 1] % 64 == 0).all()
    last = batch.document != torch.roll(batch.document, -1, dims=1)
    assert batch.weights[last].abs().sum() == 0


def test_the_loss_falls_and_another_run_goes_on_where_one_ended(work: pathlib.Path) -> None:
    batch = small_batch(work)

    def same(kind: Rows) -> Iterator[Batch]:
        assert kind == "short"
        while True:
            yield batch

    settings = Settings(work=work, minutes=5.0, plan=1e6, size="tiny", length=128, steps=25, rate=1e-2, log_every=0.0)
    told: list[dict[str, Any]] = []
    Run(settings, same).train(told.append)
    assert told[-1]["text"] < 0.5 * told[0]["text"]
    assert told[-1]["mtp"] < 0.8 * told[0]["mtp"]
    assert all(figures["index"] >= 0 for figures in told)
    again = Run(settings, same)
    assert again.progress.steps == 25
    more: list[dict[str, Any]] = []
    again.train(more.append)
    assert more[-1]["step"] == 50
    assert more[0]["text"] < 1.1 * told[-1]["text"]


def test_weights_that_were_carried_alone_are_enough_to_go_on(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run = Run(Settings(work=work, minutes=0.0, plan=1.0, size="tiny"))
    state.save(tmp_path, run.model, None, state.Progress(2.5, 7, 9))
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    for parameter in run.model.parameters():
        parameter.data.zero_()
    assert state.load(tmp_path, run.model, run.optimiser) == state.Progress(2.5, 7, 9)
    for name, tensor in run.model.state_dict().items():
        assert (tensor - before[name]).abs().max() <= 0.01 * before[name].abs().max(), name
