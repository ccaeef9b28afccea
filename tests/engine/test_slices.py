# SPDX-License-Identifier: Apache-2.0
"""A prompt that passes through the layers in slices gives the bits of one that passes at once, on one rank and two."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import pathlib
import random
from collections.abc import Callable

import pytest
import torch
from sparkpair.cache.orders import Order
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import Group, SoloGroup
from sparkpair.comm.local import join_store, local_group, open_store
from sparkpair.comm.lockstep import Run, Slice, Step, StepRunner
from sparkpair.drafting.mtp import MtpDrafter
from sparkpair.drafting.orders import DraftOrder
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.engine import LeaderEngine
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.mtp import MtpHead
from sparkpair.request import GenerationRequest, SamplingParams, TokensEvent

from tests.engine.agreeing import write_agreeing
from tests.engine.devices import DEVICE, ranks_as_threads
from tests.engine.model.conftest import random_ids
from tests.engine.test_exactness import engine

# Sequences of a test at most, and tokens of each.
SLOTS, ROOM = 10, 256

FIRST, SECOND, SHORT = random_ids(1, 150), random_ids(2, 90), random_ids(3, 30)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    torch.set_num_threads(1)
    made: pathlib.Path = tmp_path_factory.mktemp("slices")
    write_agreeing(made, 7, strength=0.5)
    return made


def load(directory: pathlib.Path, group: Group) -> StepRunner:
    config = load_text_config(directory)
    weights = RankWeights(
        Checkpoint(directory), config, world=group.world, rank=group.rank, dtype=torch.float32, device=DEVICE
    )
    model = Glm5NextRank(config, weights, group)
    return StepRunner(model, model.new_pool(SLOTS * ROOM, drafter_layers=1), MtpDrafter(MtpHead(model, weights)))


class Driver:
    """Runs steps one after the other and keeps the logits of each."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        self.number = 0
        self._begun: set[int] = set()

    def step(self, runs: list[Run], part: Slice | None = None, released: list[int] | None = None) -> torch.Tensor:
        self.number += 1
        orders = [Order("release", slot) for slot in released or []]
        for run in [*runs, *(part.runs if part else [])]:
            if run.slot not in self._begun:
                self._begun.add(run.slot)
                orders += [
                    Order("place", run.slot, base=run.slot * ROOM, size=ROOM),
                    Order("start", run.slot, source=run.slot),
                ]
        return self.runner.execute(Step(self.number, runs, orders, part=part), 1).logits

    def decode(self, slot: int, token: int, kept: int) -> Run:
        return Run(slot, [token], decode=True, logits=1, kept=kept, order=DraftOrder(2))


def portion(slot: int, ids: list[int]) -> Run:
    return Run(slot, ids, decode=False, logits=1)


def whole(runner: StepRunner) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits at the end of the two prompts, and of a window behind each, drafts with them."""
    driver = Driver(runner)
    ends = driver.step([portion(1, FIRST), portion(2, SECOND)])
    return ends, driver.step([driver.decode(1, 5, 0), driver.decode(2, 6, 0)])


def sliced(runner: StepRunner, pieces: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in slices, beside a request that drafts and decodes, and one that leaves in the middle."""
    driver = Driver(runner)
    driver.step([portion(8, SHORT)])
    begun = [portion(1, FIRST), portion(9, SHORT), portion(2, SECOND)]
    released: list[int] = []
    token, kept = 3, 0
    for number, units in enumerate(pieces):
        decode = driver.decode(8, token, kept)
        logits = driver.step([decode], Slice(units, begun if number == 0 else []), released)
        released = [9] if number == 1 else []
        token, kept = 4 + number, 1
    ends = logits[-2:]
    return ends, driver.step([driver.decode(1, 5, 0), driver.decode(2, 6, 0)])


def cuts(units: int) -> list[list[int]]:
    return [[1] * units, [2] * (units // 2) + [units % 2] * (units % 2), [1, 1, units - 2], [units - 2, 1, 1]]


@pytest.mark.parametrize("cut", range(4), ids=["one by one", "two by two", "few and the rest", "most and the rest"])
def test_slices_equal_the_whole_to_the_bit_on_one_rank(directory: pathlib.Path, cut: int) -> None:
    expected = whole(load(directory, SoloGroup()))
    runner = load(directory, SoloGroup())
    found = sliced(runner, cuts(runner.units)[cut])
    for have, want in zip(found, expected, strict=True):
        assert torch.equal(have, want)


@ranks_as_threads
def test_slices_equal_the_whole_to_the_bit_on_two_ranks(directory: pathlib.Path) -> None:
    def both(run: Callable[[StepRunner], tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        store = open_store(2)

        def rank(number: int) -> tuple[torch.Tensor, torch.Tensor]:
            return run(load(directory, local_group(store if number == 0 else join_store(store.port, 2), number, 2)))

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(rank, range(2)))

    expected = both(whole)[0]
    for found in both(lambda runner: sliced(runner, cuts(runner.units)[0])):
        for have, want in zip(found, expected, strict=True):
            assert torch.equal(have, want)


def test_a_prompt_that_leaves_between_two_slices_frees_everything(directory: pathlib.Path) -> None:
    driver = Driver(load(directory, SoloGroup()))
    driver.step([portion(8, SHORT)])
    driver.step([driver.decode(8, 3, 0)], Slice(2, [portion(1, FIRST)]))
    assert driver.runner._fill is not None
    driver.step([driver.decode(8, 4, 1)], released=[1])
    assert driver.runner._fill is None
    assert set(driver.runner._states) == {8}


async def test_streams_go_on_while_prompts_are_read_in_slices_and_cancelled_ones_are_gone(
    directory: pathlib.Path,
) -> None:
    runner = load(directory, SoloGroup())
    model = runner._model
    choose = random.Random(4)
    talking = [
        GenerationRequest(tuple(random_ids(seed, 40)), 60, SamplingParams(temperature=0.8, seed=seed), draft=False)
        for seed in range(3)
    ]
    long = GenerationRequest(tuple(choose.randrange(1, 320) for _ in range(700)), 5, SamplingParams(temperature=0.0))

    async def drain(served: LeaderEngine, request: GenerationRequest) -> tuple[int, ...]:
        events = [event async for event in served.submit(request).events()]
        return tuple(token for event in events if isinstance(event, TokensEvent) for token in event.token_ids)

    with engine(model, CopyDrafting(0), lanes=1) as served:
        alone = [await drain(served, request) for request in (*talking, long)]
    # A budget of nothing: every slice is one layer of one block.
    with engine(model, CopyDrafting(0), lanes=5, budget_s=1e-9) as served:
        running = [served.submit(request) for request in talking]
        streams = [reply.events() for reply in running]
        firsts = [await anext(stream) for stream in streams]
        leaving = served.submit(dataclasses.replace(long, prompt_ids=long.prompt_ids[::-1]))
        reading = asyncio.create_task(drain(served, long))
        before = served.health().step
        rest = [[event async for event in stream] for stream in streams[:1]]
        leaving.cancel()
        rest += [[event async for event in stream] for stream in streams[1:]]
        assert served.health().step - before >= 40
        found = [
            tuple(token for event in (first, *events) if isinstance(event, TokensEvent) for token in event.token_ids)
            for first, events in zip(firsts, rest, strict=True)
        ]
        assert [*found, await reading] == alone
        assert served.health().filling == 0
