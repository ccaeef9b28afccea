# SPDX-License-Identifier: Apache-2.0
"""The differentiable twin is the engine's model: the same weights give the same logits, alone and packed."""

from __future__ import annotations

import pathlib

import numpy
import pytest
import torch
from sparkpair.cache.state import Span
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.kernels import kda_recurrent
from sparkpair.logits import all_logits, load_rank
from sparkpair.media.patches import normalise
from sparkpair.model.config import load_document, load_text_config
from sparkpair.model.mtp import MtpHead
from sparkpair.model.vision import VisionTower
from sparkpair.model.vision_config import load_vision_config
from training.names import load_tensors
from training.packing import patch_places
from training.twin.batch import Batch, text_batch
from training.twin.kda import kda_chunks, unit_inverse
from training.twin.model import Twin

from tests.engine.model.configurations import random_text_config
from tests.engine.model.conftest import random_ids

TOLERANCE = 2e-4
torch.set_num_threads(1)


@pytest.fixture(scope="module", params=[0, 1, 2])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A random checkpoint with an MTP head; the pools of its indexers have 1, 4 or 16 tokens."""
    seed = request.param
    path = tmp_path_factory.mktemp(f"twin-{seed}")
    overrides = {
        "text_config": random_text_config(seed) | {"num_nextn_predict_layers": 1},
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "projection_intermediate_size": 40},
    }
    write_weights(path, miniature_document(overrides), seed, frozenset(range(320)))
    return path


def twin_of(path: pathlib.Path) -> Twin:
    twin = Twin(load_document(path))
    checkpoint = Checkpoint(path)
    load_tensors(twin, {name: checkpoint.read(name).float() for name in checkpoint.entries})
    return twin.eval()


def packed(documents: list[list[int]]) -> Batch:
    """Several documents of text in one row."""
    parts = [text_batch(ids, -(-len(ids) // 64) * 64) for ids in documents]
    for number, part in enumerate(parts):
        part.document += number
    row = parts[0].tensors()
    for part in parts[1:]:
        row = {name: torch.cat([row[name], tensor], dim=1) for name, tensor in part.tensors().items()}
    return Batch(**row)


@torch.no_grad()
def test_packed_documents_have_the_engines_logits(directory: pathlib.Path) -> None:
    twin, engine = twin_of(directory), load_rank(directory, SoloGroup())
    documents = [random_ids(1, 130), random_ids(2, 64), random_ids(3, 77)]
    logits = twin.logits(twin(packed(documents)).hidden)[0]
    start = 0
    for ids in documents:
        expected = all_logits(engine, ids, step=False)
        assert expected.std() > 1
        assert (logits[start : start + len(ids)] - expected).abs().max() < TOLERANCE
        start += -(-len(ids) // 64) * 64


@torch.no_grad()
def test_the_mtp_head_has_the_engines_rows(directory: pathlib.Path) -> None:
    twin = twin_of(directory)
    config = load_text_config(directory)
    weights = RankWeights(
        Checkpoint(directory), config, world=1, rank=0, dtype=torch.float32, device=torch.device("cpu")
    )
    engine = load_rank(directory, SoloGroup())
    head = MtpHead(engine, weights)
    ids = random_ids(5, 90)
    batch = text_batch(ids, 128)
    rows = twin.guess(twin(batch), batch)[0, : len(ids) - 1]
    span = Span(slice(0, len(ids) - 1), engine.lone_state(), decode=False)
    hidden = engine.hidden(engine.absorb(torch.tensor(ids[:-1]), [span]))
    expected = head.forward(
        hidden, head.embed(ids[1:]), [Span(slice(0, len(ids) - 1), head.lone_state(), decode=False)]
    )
    assert (rows - expected).abs().max() < TOLERANCE


@torch.no_grad()
def test_pictures_in_one_row_have_the_engines_rows(directory: pathlib.Path) -> None:
    twin = twin_of(directory)
    config = load_text_config(directory)
    weights = RankWeights(
        Checkpoint(directory), config, world=1, rank=0, dtype=torch.float32, device=torch.device("cpu")
    )
    tower = VisionTower(load_vision_config(directory), weights)
    generator = torch.Generator().manual_seed(1)
    grids = [(1, 8, 4), (1, 4, 6)]
    pictures = [torch.randint(0, 256, (h * w, 1176), generator=generator, dtype=torch.uint8) for _, h, w in grids]
    expected = torch.cat(
        [
            tower.encode(torch.from_numpy(normalise(picture.numpy())), grid)
            for picture, grid in zip(pictures, grids, strict=True)
        ]
    )
    frame = torch.cat([torch.full((picture.shape[0],), number) for number, picture in enumerate(pictures)])
    place = torch.from_numpy(numpy.concatenate([patch_places(h, w) for _, h, w in grids]))
    found = twin.model.visual(torch.cat(pictures)[None], frame[None], place[None], torch.float32)[0]
    assert expected.std() > 0.1
    assert (found - expected).abs().max() < TOLERANCE


def test_chunks_equal_the_recurrence_at_the_strongest_decay() -> None:
    """Also where powers of the keys' products would overflow: all keys alike."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 192, 2, 8, dtype=torch.float64) for _ in range(3))
    k = k[:, :1].expand_as(k) / k[:, :1].norm(dim=-1, keepdim=True)
    decay = -torch.tensor([5.0, 0.001], dtype=torch.float64).view(1, 1, 2, 1).expand(1, 192, 2, 8)
    beta = torch.ones(1, 192, 2, dtype=torch.float64)
    out = kda_chunks(*(x[0].float() for x in (q, k, v, decay, beta)), torch.ones(1, 3))
    expected, _ = kda_recurrent(q[0], k[0], v[0], decay[0], beta[0], torch.zeros(2, 8, 8, dtype=torch.float64))
    assert (out.double() - expected).abs().max() < 1e-4


def test_the_gradient_of_the_inverse_is_that_of_the_library() -> None:
    lower = torch.randn(3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).tril(-1)
    weigh = torch.randn(3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    grads = []
    for invert in (unit_inverse, lambda x: torch.linalg.inv(torch.eye(16, dtype=x.dtype) + x)):
        leaf = lower.clone().requires_grad_()
        (invert(leaf) * weigh).sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad.tril(-1))
    assert (grads[0] - grads[1]).abs().max() < 1e-9 * grads[1].abs().max()
