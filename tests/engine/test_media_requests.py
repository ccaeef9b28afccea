# SPDX-License-Identifier: Apache-2.0
"""Requests with pictures: placed in whatever step reads them, told apart by content, the same on two ranks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import pathlib
import threading
from collections.abc import Iterator

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair.cache.keeper import PoolKeeper
from sparkpair.cache.orders import Order
from sparkpair.cache.state import Span
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import Group, SoloGroup
from sparkpair.comm.local import join_store, local_group, open_store
from sparkpair.comm.lockstep import Run, Step, StepRunner
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.engine import CHUNK_ROWS, EngineSettings, LeaderEngine
from sparkpair.grid import GRID
from sparkpair.logits import load_rank
from sparkpair.media.limits import MediaLimits
from sparkpair.media.patches import cut, normalise
from sparkpair.media.pictures import read_picture
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.media_encoder import MediaEncoder, Portion
from sparkpair.model.media_rows import MediaRows
from sparkpair.model.vision import VisionTower
from sparkpair.model.vision_config import load_vision_config
from sparkpair.request import (
    EngineError,
    FinishedEvent,
    GenerationRequest,
    MediaPart,
    ReplyStats,
    SamplingParams,
    TokensEvent,
)

from tests.engine import devices
from tests.engine.devices import DEVICE, ranks_as_threads
from tests.engine.media.files import encoded, picture
from tests.engine.model.configurations import random_text_config
from tests.engine.test_exactness import POOL

IMAGE = 310


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    torch.set_num_threads(1)
    directory: pathlib.Path = tmp_path_factory.mktemp("media-requests")
    write_weights(directory, miniature_document({"text_config": random_text_config(7)}), 7, frozenset(range(320)))
    return directory


@pytest.fixture(scope="module")
def tower(checkpoint: pathlib.Path) -> VisionTower:
    config = load_text_config(checkpoint)
    weights = RankWeights(Checkpoint(checkpoint), config, world=1, rank=0, dtype=torch.float32, device=DEVICE)
    return VisionTower(load_vision_config(checkpoint), weights)


@pytest.fixture(scope="module")
def model(checkpoint: pathlib.Path) -> Glm5NextRank:
    return load_rank(checkpoint, SoloGroup(), DEVICE)


def part(first: int, seed: int) -> MediaPart:
    """A picture of 30 tokens that fills the prompt from position `first` on."""
    data = encoded(picture(160, 140, seed))
    patches, grid = read_picture(data, MediaLimits())
    count = patches.shape[0] // 4
    assert count == 30
    return MediaPart(tuple(range(first, first + count)), patches, grid, hashlib.sha256(data).digest())


def request(seed: int, *, first: int = CHUNK_ROWS - 20, length: int = 400) -> GenerationRequest:
    """A prompt whose picture crosses the end of a step, and a second one close behind it."""
    media = (part(first, seed), part(first + 40, seed + 100))
    ids = [7 * at % 300 + 1 for at in range(length)]
    for picture_part in media:
        for position in picture_part.positions:
            ids[position] = IMAGE
    return GenerationRequest(
        tuple(ids), max_new_tokens=12, sampling=SamplingParams(temperature=0.0), media=media, draft=False
    )


@contextlib.contextmanager
def engine(
    model: Glm5NextRank, encoder: MediaEncoder | None, *, entries: int = 0, deaths: list[Exception] | None = None
) -> Iterator[LeaderEngine]:
    """`deaths` is what an engine that is to die leaves behind."""
    noted: list[Exception] = [] if deaths is None else deaths
    made = LeaderEngine(
        StepRunner(model, model.new_pool(POOL)),
        None,
        EngineSettings(context=4096, lanes=4, window_rows=32, fill_budget_s=0.001),
        CopyDrafting(0),
        PoolKeeper(POOL, most_kept=entries, unit=GRID),
        world=1,
        on_death=noted.append,
        encoder=encoder,
    )
    made.start()
    try:
        yield made
    finally:
        made.stop()
    assert deaths is not None or noted == []


async def collect(served: LeaderEngine, asked: GenerationRequest) -> tuple[list[int], ReplyStats]:
    tokens: list[int] = []
    async for event in served.submit(asked).events():
        if isinstance(event, TokensEvent):
            tokens.extend(event.token_ids)
        else:
            assert isinstance(event, FinishedEvent)
            return tokens, event.stats
    raise AssertionError("no last event")


def expected_reply(model: Glm5NextRank, tower: VisionTower, asked: GenerationRequest) -> list[int]:
    """Greedy tokens with the prompt read in one pass and its pictures placed by hand."""
    state = model.lone_state()
    rows = torch.cat([tower.encode(torch.from_numpy(normalise(one.patches)), one.grid) for one in asked.media])
    where = [position for one in asked.media for position in one.positions]
    tokens = devices.tensor(asked.prompt_ids)
    span = Span(slice(0, len(tokens)), state, decode=False)
    token = int(model.forward(tokens, [span], [len(tokens) - 1], MediaRows(where, rows)).argmax())
    reply = [token]
    while len(reply) < asked.max_new_tokens:
        logits = model.forward(devices.tensor([token]), [Span(slice(0, 1), state, decode=True)], [0])
        state.commit(1)
        token = int(logits.argmax())
        reply.append(token)
    return reply


async def test_replies_are_those_of_one_pass_alone_and_together(model: Glm5NextRank, tower: VisionTower) -> None:
    asked = [request(1), request(2, first=3), request(3, first=CHUNK_ROWS - 1)]
    plain = dataclasses.replace(asked[0], media=())
    wanted = [expected_reply(model, tower, one) for one in asked]
    assert len({tuple(reply) for reply in wanted}) == 3
    with engine(model, MediaEncoder(tower)) as served:
        assert [(await collect(served, one))[0] for one in asked] == wanted
        together = await asyncio.gather(*(collect(served, one) for one in [*asked, plain]))
    assert [tokens for tokens, _ in together[:3]] == wanted
    assert together[3][0] != wanted[0], "the picture makes no difference, so placing it right would say little"


async def test_kept_prompts_tell_pictures_apart_by_content(model: Glm5NextRank, tower: VisionTower) -> None:
    first, other = request(1), request(2)
    assert first.prompt_ids == other.prompt_ids
    with engine(model, MediaEncoder(tower), entries=8) as served:
        fresh, _ = await collect(served, first)
        different, stats = await collect(served, other)
        # What stands before the first picture is the same for both, in whole blocks.
        assert stats.cached_tokens <= (CHUNK_ROWS - 20) // 64 * 64
        again, resumed = await collect(served, request(1))
    assert different == expected_reply(model, tower, other)
    assert again == fresh == expected_reply(model, tower, first)
    assert resumed.cached_tokens == len(first.prompt_ids)


async def test_an_engine_without_a_tower_takes_no_pictures(model: Glm5NextRank) -> None:
    with engine(model, None) as served, pytest.raises(EngineError, match="started without a vision tower"):
        served.submit(request(1))


async def test_others_go_on_while_a_picture_is_encoded(
    model: Glm5NextRank, tower: VisionTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    encode = tower.encode

    def held(patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        begun.set()
        assert go_on.wait(60)
        return encode(patches, grid)

    asked = request(1)
    plain = dataclasses.replace(asked, media=(), prompt_ids=asked.prompt_ids[:90])
    wanted = expected_reply(model, tower, asked)
    monkeypatch.setattr(tower, "encode", held)
    with engine(model, MediaEncoder(tower)) as served:
        pictured = asyncio.create_task(collect(served, asked))
        await asyncio.to_thread(begun.wait, 60)
        assert len((await collect(served, plain))[0]) == plain.max_new_tokens
        left = served.submit(request(2))
        left.cancel()
        assert [event async for event in left.events()][-1].reason == "cancelled"
        assert not pictured.done()
        go_on.set()
        assert (await pictured)[0] == wanted


async def test_pictures_that_a_kept_prompt_holds_are_not_encoded_again(
    model: Glm5NextRank, tower: VisionTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(model, MediaEncoder(tower), entries=8) as served:
        fresh, _ = await collect(served, request(1))
        assert served._encoder is not None
        served._encoder.stop()
        served._encoder = MediaEncoder(tower)
        served._encoder.start()
        monkeypatch.setattr(tower, "encode", None)
        assert (await collect(served, request(1)))[0] == fresh


async def test_an_encoder_that_fails_ends_the_engine_in_its_words(
    model: Glm5NextRank, tower: VisionTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tower, "encode", lambda patches, grid: torch.empty(0)[5])
    deaths: list[Exception] = []
    with (
        pytest.raises(EngineError, match="the engine stopped: index 5 is out of bounds"),
        engine(model, MediaEncoder(tower), deaths=deaths) as served,
    ):
        await collect(served, request(1))
    assert len(deaths) == 1


@contextlib.contextmanager
def encoding(tower: VisionTower) -> Iterator[MediaEncoder]:
    encoder = MediaEncoder(tower)
    encoder.start()
    yield encoder
    encoder.stop()


def wait_ready(encoder: MediaEncoder, portion: Portion, owner: int = 1) -> None:
    while not encoder.ready(owner, portion):
        encoder.wait(0.05)


def counted(tower: VisionTower, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """The grids that the tower encodes from now on."""
    grids: list[tuple[int, int, int]] = []
    encode = tower.encode

    def counting(patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        grids.append(grid)
        return encode(patches, grid)

    monkeypatch.setattr(tower, "encode", counting)
    return grids


def test_a_picture_is_encoded_once_and_forgotten_when_others_need_the_room(
    tower: VisionTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = counted(tower, monkeypatch)
    one, two = part(10, 1), part(50, 2)
    with encoding(tower) as encoder:
        found = []
        for start, stop in ((0, 25), (25, 60), (60, 90)):
            wait_ready(encoder, ((one, two), start, stop))
            found.append(encoder.rows([((one, two), start, stop)]))
        assert [rows.shape[0] for rows in found if rows is not None] == [15, 25, 20]
        assert len(grids) == 2
        assert encoder.ready(1, ((one, two), 40, 50))
        assert encoder.rows([((one, two), 40, 50)]) is None
        monkeypatch.setattr("sparkpair.model.media_encoder.MAX_ROWS", 40)
        wait_ready(encoder, ((part(0, 3),), 0, 30))
        wait_ready(encoder, ((one,), 10, 40))
        assert len(grids) == 4


def test_a_clip_is_encoded_pair_by_pair_as_its_portions_come(
    tower: VisionTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = counted(tower, monkeypatch)
    frames = [numpy.asarray(picture(112, 112, seed)) for seed in range(6)]
    patches, grid = cut(frames)
    # Every pair has 16 tokens, with two tokens of text behind it.
    clip = MediaPart(tuple(18 * pair + token for pair in range(3) for token in range(16)), patches, grid, b"clip")
    whole = tower.encode(torch.from_numpy(normalise(patches)), grid)
    grids.clear()
    with encoding(tower) as encoder:
        wait_ready(encoder, ((clip,), 0, 20))
        assert grids == [(1, 8, 8), (1, 8, 8)]
        wait_ready(encoder, ((clip,), 20, 54))
        wait_ready(encoder, ((clip,), 0, 54))
        rows = encoder.rows([((clip,), 0, 54)])
    assert len(grids) == 3
    assert rows is not None
    assert torch.equal(rows, whole.to(rows.device))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11)), min_size=1, max_size=25))
@settings(max_examples=30, deadline=None)
def test_the_rows_held_stay_within_their_bound_and_every_request_gets_its_turn(asks: list[tuple[int, int]]) -> None:
    most = 0

    class Tower:
        def encode(self, patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
            nonlocal most
            most = max(most, sum(rows.shape[0] for rows in encoder._rows.values()))
            return torch.zeros(grid[1] * grid[2] // 4, 1)

    patches = numpy.zeros((16, 1176), dtype=numpy.uint8)
    parts = [MediaPart(tuple(range(4 * n, 4 * n + 4)), patches, (1, 4, 4), bytes([n])) for n in range(13)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparkpair.model.media_encoder.MAX_ROWS", 10)
        with encoding(Tower()) as encoder:  # type: ignore[arg-type]
            waiting = {owner: (parts, 4 * first, 4 * first + 5) for owner, first in asks}
            while waiting:
                for owner, portion in [*waiting.items()]:
                    if encoder.ready(owner, portion):
                        rows = encoder.rows([portion])
                        assert rows is not None
                        assert rows.shape[0] == 5
                        encoder.forget(owner)
                        del waiting[owner]
                if waiting:
                    encoder.wait(0.05)
    assert most <= 10


@ranks_as_threads
def test_ranks_in_step_place_what_only_rank_0_has(checkpoint: pathlib.Path, tower: VisionTower) -> None:
    asked = request(4, first=5, length=90)
    where = [position for one in asked.media for position in one.positions]
    begin = [Order("place", 1, size=POOL), Order("start", 1, source=1)]
    step = Step(1, [Run(1, list(asked.prompt_ids), decode=False, logits=1, media=where)], begin)
    assert Step.parse(step.message()["step"]) == step
    with encoding(tower) as encoder:
        wait_ready(encoder, (asked.media, 0, 90))
        rows = encoder.rows([(asked.media, 0, 90)])

    def runner(group: Group) -> StepRunner:
        model = load_rank(checkpoint, group, DEVICE)
        return StepRunner(model, model.new_pool(POOL))

    alone = runner(SoloGroup()).execute(step, 7, rows).logits
    store = open_store(2)
    found: dict[int, torch.Tensor] = {}

    def run(rank: int) -> None:
        group = local_group(store if rank == 0 else join_store(store.port, 2), rank, 2)
        found[rank] = runner(group).execute(step, 7, rows if rank == 0 else None).logits

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[0], found[1])
    assert (found[0] - alone).abs().max() < 1e-4
