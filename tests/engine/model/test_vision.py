# SPDX-License-Identifier: Apache-2.0
"""The vision tower and whole multimodal prompts equal transformers' on random small configurations, in fp32."""

from __future__ import annotations

import pathlib
import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sparkpair.cache.state import Span
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.comm.local import join_store, local_group, open_store
from sparkpair.errors import UserError
from sparkpair.logits import load_rank
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.media_rows import MediaRows
from sparkpair.model.vision import VisionTower
from sparkpair.model.vision_config import load_vision_config, parse_vision_config

from tests.engine.devices import DEVICE, ranks_as_threads
from tests.engine.model.configurations import random_text_config
from tests.engine.model.conftest import random_ids

TOLERANCE = 1e-4
Grid = tuple[int, int, int]

# Ids of the markers in a vocabulary of 320.
IMAGE, START, END, VIDEO_START, VIDEO_END = 310, 311, 312, 313, 314


def random_document(seed: int) -> dict[str, Any]:
    """config.json of a seed: the text configurations of the other tests, and a tower of random dimensions."""
    choose = random.Random(seed)
    heads = choose.choice([1, 2, 3])
    vision = {
        "depth": choose.choice([1, 2, 3]),
        "hidden_size": heads * choose.choice([8, 16, 32]),
        "num_heads": heads,
        "intermediate_size": choose.choice([24, 40]),
        "patch_size": choose.choice([4, 6]),
        "projection_intermediate_size": choose.choice([32, 48]),
    }
    document = miniature_document({"text_config": random_text_config(seed), "vision_config": vision})
    document["text_config"]["pad_token_id"] = 0
    document |= {
        "image_token_id": IMAGE,
        "video_token_id": 315,
        "image_start_token_id": START,
        "image_end_token_id": END,
        "video_start_token_id": VIDEO_START,
        "video_end_token_id": VIDEO_END,
    }
    return document


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], pathlib.Path]:
    written: dict[int, pathlib.Path] = {}

    def write_once(seed: int) -> pathlib.Path:
        if seed not in written:
            written[seed] = tmp_path_factory.mktemp(f"vision-{seed}")
            write_weights(written[seed], random_document(seed), seed, frozenset(range(320)))
        return written[seed]

    return write_once


def reference(directory: pathlib.Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.models.glm5_next.modeling_glm5_next import Glm5NextForConditionalGeneration

        return Glm5NextForConditionalGeneration.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()


def load_tower(directory: pathlib.Path) -> VisionTower:
    weights = RankWeights(
        Checkpoint(directory),
        load_text_config(directory),
        world=1,
        rank=0,
        dtype=torch.float32,
        device=DEVICE,
    )
    return VisionTower(load_vision_config(directory), weights)


def random_patches(tower: VisionTower, grid: Grid, seed: int) -> torch.Tensor:
    count = grid[0] * grid[1] * grid[2]
    return torch.randn(count, tower.config.patch_values, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(12))
def test_the_tower_equals_the_reference(seed: int, write: Callable[[int], pathlib.Path]) -> None:
    directory = write(seed)
    tower = load_tower(directory)
    choose = random.Random(seed)
    grids = [(choose.choice([1, 2, 3]), 2 * choose.randint(1, 5), 2 * choose.randint(1, 5)) for _ in range(2)]
    patches = [random_patches(tower, grid, seed + at) for at, grid in enumerate(grids)]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        visual = reference(directory).model.visual
        # The reference attends among all frames of one entry, so a clip's pairs are given one by one.
        pairs = [(1, height, width) for times, height, width in grids for _ in range(times)]
        expected = visual(torch.cat(patches), grid_thw=torch.tensor(pairs)).pooler_output
    found = encoded_rows(tower, patches, grids)
    assert expected.std() > 0.1, "the reference's rows are flat, so agreeing with them would say little"
    assert (found - expected).abs().max() <= TOLERANCE


def encoded_rows(tower: VisionTower, patches: list[torch.Tensor], grids: list[Grid]) -> torch.Tensor:
    """The tower's rows of several pictures, on the CPU."""
    return torch.cat([tower.encode(part, grid) for part, grid in zip(patches, grids, strict=True)]).cpu()


def multimodal_prompt(tower: VisionTower, seed: int) -> tuple[list[int], list[torch.Tensor], list[Grid]]:
    """Text, a picture, text, another picture: ids, patches and grids."""
    grids: list[Grid] = [(1, 4, 6), (1, 8, 4)]
    patches = [random_patches(tower, grid, seed + at) for at, grid in enumerate(grids)]
    text = [token % 300 + 1 for token in random_ids(seed, 100)]
    ids = [
        *text[:50], START, *[IMAGE] * 6, END, *text[50:62],
        START, *[IMAGE] * 8, END, *text[62:],
    ]  # fmt: skip
    return ids, patches, grids


def chunked_logits(model: Glm5NextRank, ids: list[int], rows: torch.Tensor | None, cuts: list[int]) -> torch.Tensor:
    """Logits of every position; the prompt absorbed in the pieces that `cuts` ends."""
    state = model.lone_state()
    places = [at for at, token in enumerate(ids) if token == IMAGE]
    pieces = []
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        inside = [index for index, place in enumerate(places) if start <= place < stop]
        media = MediaRows([places[index] - start for index in inside], None if rows is None else rows[inside])
        span = Span(slice(0, stop - start), state, decode=False)
        pieces.append(
            model.forward(
                torch.tensor(ids[start:stop], device=model.device),
                [span],
                list(range(stop - start)),
                media if inside else None,
            )
        )
    return torch.cat(pieces).cpu()


@pytest.mark.parametrize("seed", range(10))
def test_logits_after_pictures_equal_the_reference(seed: int, write: Callable[[int], pathlib.Path]) -> None:
    directory = write(seed)
    tower = load_tower(directory)
    ids, patches, grids = multimodal_prompt(tower, seed)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = reference(directory)(
            input_ids=torch.tensor([ids]), pixel_values=torch.cat(patches), image_grid_thw=torch.tensor(grids)
        ).logits[0]
    rows = encoded_rows(tower, patches, grids)
    model = load_rank(directory, SoloGroup(), DEVICE)
    # Whole; cut inside the first picture; cut at its first and inside the second; one token at a time around one.
    for cuts in ([], [54], [51, 64, 76], [50, 51, 52, 53, 58]):
        found = chunked_logits(model, ids, rows, cuts)
        assert torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE), cuts


@ranks_as_threads
def test_two_ranks_see_the_picture_that_only_rank_0_has(write: Callable[[int], pathlib.Path]) -> None:
    directory = write(3)
    tower = load_tower(directory)
    ids, patches, grids = multimodal_prompt(tower, 3)
    rows = encoded_rows(tower, patches, grids)
    expected = chunked_logits(load_rank(directory, SoloGroup(), DEVICE), ids, rows, [54])
    store = open_store(2)
    found: dict[int, torch.Tensor] = {}

    def run(rank: int) -> None:
        group = local_group(store if rank == 0 else join_store(store.port, 2), rank, 2)
        found[rank] = chunked_logits(load_rank(directory, group), ids, rows if rank == 0 else None, [54])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[0], found[1])
    assert (found[0] - expected).abs().max() <= TOLERANCE


def test_a_checkpoint_without_a_tower_says_so() -> None:
    with pytest.raises(UserError, match="there is no vision_config, so the checkpoint cannot look at pictures"):
        parse_vision_config({"text_config": {}}, "here/config.json")


def test_a_tower_that_cannot_turn_is_refused() -> None:
    document = random_document(0)
    document["vision_config"] |= {"hidden_size": 30, "num_heads": 5}
    with pytest.raises(UserError, match=r"vision_config: hidden_size is 30, expected a multiple of 4 \* num_heads"):
        parse_vision_config(document, "config.json")
