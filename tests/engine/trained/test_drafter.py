# SPDX-License-Identifier: Apache-2.0
"""The drafter's training: its twin is the engine's, lessons stay inside their document, and drafts get better."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.checkpoint.miniature_drafter import drafter_document, write_drafter_files
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.drafting.dflash2 import Selector
from sparkpair.drafting.files import find_dflash2
from sparkpair.drafting.orders import DraftOrder
from sparkpair.drafting.source import DFlash2Source
from sparkpair.logits import load_rank
from sparkpair.model.config import load_text_config
from sparkpair.model.dflash2 import DFlash2Rank, DrafterWeights
from sparkpair.model.dflash2_config import load_dflash2_config
from training import state
from training.draft_export import write_trained_drafter
from training.draft_loss import draw_lesson
from training.drafter import DrafterOf
from training.mixture import Rows
from training.names import load_tensors
from training.packing import Shape
from training.train import Run, Settings
from training.twin.batch import Batch
from training.twin.drafter import Drafter, blocks_at
from training.twin.model import Twin

from tests.engine.model.configurations import random_text_config
from tests.engine.model.conftest import random_ids
from tests.engine.model.test_dflash2 import taps_of
from tests.engine.trained.small import small_batch
from tests.engine.trained.test_twin import packed, twin_of

TOLERANCE = 2e-4
BLOCK, WINDOW = 5, 20
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("target")
    write_weights(path, miniature_document({"text_config": random_text_config(4)}), 4, frozenset(range(320)))
    return path


@pytest.fixture(scope="module")
def drafter(target: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("drafter")
    config = load_text_config(target)
    document = drafter_document(config) | {"head_dim": 8, "sliding_window": WINDOW}
    document["dflash_config"] |= {"block_size": BLOCK, "selector_rank": 6, "selector_top_k": 7}
    write_drafter_files(path, document, config, 4)
    return path


@torch.no_grad()
def test_blocks_behind_many_anchors_are_the_engines_blocks(target: pathlib.Path, drafter: pathlib.Path) -> None:
    engine, checkpoint = load_rank(target, SoloGroup()), Checkpoint(drafter)
    config = load_dflash2_config(drafter, load_text_config(target), 1)
    model = DFlash2Rank(config, DrafterWeights(checkpoint, config, engine), engine)
    twin, own = twin_of(target), Drafter(config)
    load_tensors(own, {name: checkpoint.read(name).float() for name in checkpoint.entries})
    assert set(own.state_dict()) == set(config.shapes())
    documents = [random_ids(1, 70), random_ids(2, 50)]
    batch = packed(documents)
    passed = twin(batch, taps=config.taps)
    # At the beginning, within the window, beyond it; in the second document, which begins at column 128.
    places = [(0, 1), (0, 7), (0, 19), (0, 69), (1, 3), (1, 44)]
    anchors = torch.tensor([[128 * number + place for number, place in places]])
    blocks = blocks_at(anchors, batch.document, batch.position, config)
    embedding = twin.model.language_model.embed_tokens.weight
    rows = own(passed.taps, batch.position, batch.tokens.gather(1, anchors), blocks, embedding)[0]
    for found, (number, place) in zip(rows, places, strict=True):
        ids = documents[number]
        context = model.context(taps_of(model, ids[:place]), torch.arange(place))
        (expected,) = model.block([ids[place]], [place], [context[-(WINDOW - 1) :]])
        assert expected.std() > 0.5
        assert (found - expected).abs().max() < TOLERANCE
        chain = Selector(model).chain(ids[place], place, engine.logits(expected[1:]), expected[1:], DraftOrder(15))
        assert chain == greedy_chain(twin, own, found[1:], ids[place])


def greedy_chain(twin: Twin, own: Drafter, hidden: torch.Tensor, pending: int) -> list[int]:
    """The selector's walk with the twin's scores."""
    chain = [pending]
    for row in hidden:
        values, candidates = twin.logits(row).topk(own.config.selector_top_k)
        scores = values + own.candidate_selector(row, torch.tensor(chain[-1]), candidates)
        chain.append(int(candidates[scores.argmax()]))
    return chain[1:]


def test_a_lesson_stays_in_its_document_and_mostly_in_replies(work: pathlib.Path) -> None:
    torch.manual_seed(1)
    batch = small_batch(work)
    replies = drawn = 0
    for _ in range(20):
        lesson = draw_lesson(batch, 7)
        rows = torch.arange(batch.tokens.shape[0]).view(-1, 1, 1).expand_as(lesson.columns)
        begins = lesson.counts[:, :, 0]
        assert (batch.weights[rows, lesson.columns][lesson.counts] > 0).all()
        own = batch.document.gather(1, lesson.anchors).unsqueeze(2).expand_as(lesson.columns)
        assert (batch.document[rows, lesson.columns] == own)[lesson.counts].all()
        steps = lesson.columns - lesson.anchors.unsqueeze(2)
        assert (steps == torch.arange(7))[lesson.counts].all()
        assert (lesson.counts.int().diff(dim=2) <= 0).all(), "a chain goes on behind its end"
        replies += int((batch.weights.gather(1, lesson.anchors)[begins] > 0.2).sum())
        drawn += int(begins.sum())
    assert replies > 0.6 * drawn


def test_drafts_get_better_and_the_engine_loads_them(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    batch = small_batch(work, shape=Shape(2, 128, 0))

    def same(kind: Rows) -> Iterator[Batch]:
        while True:
            yield batch

    settings = Settings(work=work, minutes=5.0, plan=1e6, size="tiny", length=128, steps=20, rate=2e-2, log_every=0.0)
    with pytest.raises(SystemExit, match="holds no trained model"):
        Run(settings, same, DrafterOf)
    Run(settings, same).train(lambda figures: None)
    before = {name: tensor.clone() for name, tensor in Run(settings).model.state_dict().items()}
    told: list[dict[str, Any]] = []
    Run(dataclasses.replace(settings, steps=40, rate=6e-2), same, DrafterOf).train(told.append)
    assert told[-1]["unary"] < 0.5 * told[0]["unary"]
    assert told[0]["accepted"] < 0.5
    assert told[-1]["accepted"] > 1.5
    assert told[-1]["accepted"] <= told[-1]["possible"] <= 7
    after = Run(settings).model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items()), "the target was changed"
    # Weights alone, as they are carried, are what is exported.
    (work / "drafter" / state.WHOLE).unlink()
    write_trained_drafter(tmp_path / "drafter", work, "tiny")
    source = DFlash2Source(find_dflash2(tmp_path / "drafter", load_text_config(work / "text"), 2))
    assert json.loads((tmp_path / "drafter" / "manifest.json").read_text())["files"].keys() == {
        "config.json",
        "model.safetensors",
    }
    assert source.config.block_size == 8
