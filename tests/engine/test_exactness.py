# SPDX-License-Identifier: Apache-2.0
"""Replies are exact: drafts, other requests and the order of arrival change when tokens come, never which."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import random
from collections.abc import Iterator

import pytest
import torch
from sparkpair.cache.forms import RowForm
from sparkpair.cache.keeper import PoolKeeper
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.comm.group import SoloGroup
from sparkpair.comm.lockstep import StepRunner
from sparkpair.drafting.policy import CopyDrafting, Drafting
from sparkpair.engine import EngineSettings, LeaderEngine
from sparkpair.grid import GRID
from sparkpair.logits import load_rank
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.request import FinishedEvent, GenerationRequest, SamplingParams, TokensEvent
from sparkpair.stream import Stream

from tests.engine.devices import DEVICE
from tests.engine.model.configurations import random_text_config

Reply = tuple[tuple[int, ...], str]

# Tokens of the pool, with units of one block: enough for all that run, so that what is kept seldom has to go.
POOL = 4096


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory: pathlib.Path = tmp_path_factory.mktemp("exactness")
    document = miniature_document({"text_config": random_text_config(7)})
    document["text_config"]["pad_token_id"] = 0
    write_weights(directory, document, 7, frozenset(range(320)))
    return directory


@pytest.fixture(scope="module")
def model(directory: pathlib.Path) -> Glm5NextRank:
    torch.set_num_threads(1)
    return load_rank(directory, SoloGroup(), DEVICE)


def requests() -> list[GenerationRequest]:
    """Eleven requests that differ in length, sampling and how they end."""
    choose = random.Random(5)
    quoted = [choose.randrange(1, 320) for _ in range(40)]
    made = []
    for index, sampling in enumerate(
        [
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=1.0, seed=3),
            SamplingParams(temperature=0.8, top_p=0.9),
            SamplingParams(temperature=1.2, top_k=20),
            SamplingParams(temperature=1.0, min_p=0.05),
            SamplingParams(temperature=0.7, top_p=0.8, top_k=50, min_p=0.01, seed=9),
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=1.0, top_p=0.95),
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=0.5),
        ]
    ):
        prompt = [choose.randrange(1, 320) for _ in range((1, 5, 63, 64, 65, 130, 200, 12, 90, 33, 7)[index])]
        if index % 3 == 0:
            prompt += quoted + quoted
        made.append(
            GenerationRequest(
                prompt_ids=tuple(prompt),
                max_new_tokens=(40, 1, 24, 30, 17, 33, 12, 25, 2, 28, 21)[index],
                sampling=sampling,
                stop_ids=frozenset(range(0, 320, 11)) if index % 2 else frozenset(),
                min_new_tokens=5 if index == 5 else 0,
                background=index == 4,
            )
        )
    return made


class Oracle:
    """Drafts the reply that is known to come, wrong in a given share of places: accepts and rejects at every length."""

    def __init__(self, replies: dict[tuple[int, ...], Reply], wrong: float) -> None:
        self._replies = replies
        self._wrong = wrong
        self._choose = random.Random(1)
        self.drafted = 0

    def propose(self, stream: Stream, most: int) -> list[int]:
        reply = self._replies[stream.job.request.prompt_ids][0]
        coming = list(reply[stream.produced : stream.produced + self._choose.randrange(most + 1)])
        self.drafted += len(coming)
        return [token if self._choose.random() >= self._wrong else self._choose.randrange(320) for token in coming]

    def forget(self, stream: Stream) -> None:
        pass


@contextlib.contextmanager
def engine(
    model: Glm5NextRank,
    drafting: Drafting,
    lanes: int,
    budget_s: float = 0.001,
    entries: int = 0,
    pool: int = POOL,
    kv: RowForm = "fp32",
) -> Iterator[LeaderEngine]:
    deaths: list[Exception] = []
    made = LeaderEngine(
        StepRunner(model, model.new_pool(pool, kv)),
        None,
        EngineSettings(context=4096, lanes=lanes, window_rows=32, fill_budget_s=budget_s),
        drafting,
        PoolKeeper(pool, most_kept=entries, unit=GRID),
        world=1,
        on_death=deaths.append,
    )
    made.start()
    yield made
    made.stop()
    assert deaths == []


async def collect(served: LeaderEngine, request: GenerationRequest) -> Reply:
    tokens: list[int] = []
    async for event in served.submit(request).events():
        if isinstance(event, TokensEvent):
            tokens.extend(event.token_ids)
        else:
            assert isinstance(event, FinishedEvent)
            assert event.stats.completion_tokens == len(tokens)
            reason = event.reason
    return tuple(tokens), reason


@pytest.fixture(scope="module")
def serial(model: Glm5NextRank) -> dict[tuple[int, ...], Reply]:
    """Every request alone and without drafts, by its prompt."""

    async def run() -> dict[tuple[int, ...], Reply]:
        with engine(model, CopyDrafting(0), lanes=1) as served:
            return {request.prompt_ids: await collect(served, request) for request in requests()}

    return asyncio.run(run())


def test_the_requests_end_in_both_ways_and_are_long_enough_to_say_something(
    serial: dict[tuple[int, ...], Reply],
) -> None:
    assert {reason for _, reason in serial.values()} == {"stop", "length"}
    assert sum(len(tokens) for tokens, _ in serial.values()) > 100


@pytest.mark.parametrize(("wrong", "lanes"), [(0.0, 1), (0.3, 1), (0.3, 4), (1.0, 4)])
async def test_drafts_only_propose(
    model: Glm5NextRank, serial: dict[tuple[int, ...], Reply], wrong: float, lanes: int
) -> None:
    oracle = Oracle(serial, wrong)
    with engine(model, oracle, lanes) as served:
        replies = await asyncio.gather(*(collect(served, request) for request in requests()))
        health = served.health()
    assert replies == [serial[request.prompt_ids] for request in requests()]
    assert oracle.drafted == health.drafted_total > 50
    if wrong == 0.0:
        # The draft of a reply's last token needs no row of its own, so it is not counted.
        assert health.drafted_total - len(requests()) <= health.accepted_total <= health.drafted_total
    elif wrong == 0.3:
        assert 0 < health.accepted_total < health.drafted_total


async def test_a_request_that_asks_for_serial_decoding_is_not_drafted_for(
    model: Glm5NextRank, serial: dict[tuple[int, ...], Reply]
) -> None:
    request = dataclasses.replace(requests()[0], draft=False)
    oracle = Oracle(serial, 0.0)
    with engine(model, oracle, lanes=1) as served:
        assert await collect(served, request) == serial[request.prompt_ids]
    assert oracle.drafted == 0


@pytest.mark.parametrize("budget_s", [0.0, 0.2], ids=["no budget", "usual"])
async def test_together_equals_alone_in_a_burst(
    model: Glm5NextRank, serial: dict[tuple[int, ...], Reply], budget_s: float
) -> None:
    with engine(model, CopyDrafting(15), lanes=8, budget_s=budget_s) as served:
        replies = await asyncio.gather(*(collect(served, request) for request in requests()))
    assert replies == [serial[request.prompt_ids] for request in requests()]


async def test_together_equals_alone_staggered(model: Glm5NextRank, serial: dict[tuple[int, ...], Reply]) -> None:
    with engine(model, CopyDrafting(15), lanes=3) as served:
        running = []
        for request in requests():
            reply = served.submit(request)
            events = reply.events()
            first = await anext(events)  # the next request comes when this one has its first token
            running.append((first, events))
        replies = []
        for first, events in running:
            tokens = list(first.token_ids) if isinstance(first, TokensEvent) else []
            reason = ""
            async for event in events:
                if isinstance(event, TokensEvent):
                    tokens.extend(event.token_ids)
                else:
                    reason = event.reason
            replies.append((tuple(tokens), reason))
    assert replies == [serial[request.prompt_ids] for request in requests()]


def conversation(turns: int, system: int) -> list[GenerationRequest]:
    """Prompts that each extend the one before by some tokens, behind a shared beginning of `system` tokens."""
    choose = random.Random(turns)
    prompt = [token % 319 + 1 for token in range(system)]
    made = []
    for turn in range(turns):
        prompt = prompt + [choose.randrange(1, 320) for _ in range((30, 64, 97, 5)[turn % 4])]
        made.append(GenerationRequest(tuple(prompt), 9, SamplingParams(temperature=0.9, top_p=0.9)))
    return made


# Plenty of everything; and so little that kept prompts go all the time and free room has to be gathered.
@pytest.mark.parametrize(("entries", "pool"), [(64, POOL), (6, 20 * GRID)])
async def test_resumed_equals_fresh(model: Glm5NextRank, entries: int, pool: int) -> None:
    # Two conversations with a common beginning, each prompt asked twice: extended, identical and shared resumes.
    asked = [
        request
        for pair in zip(conversation(6, 130), conversation(7, 130), strict=False)
        for request in (*pair, pair[0])
    ]
    with engine(model, CopyDrafting(0), lanes=1) as served:
        fresh = [await collect(served, request) for request in asked]
    with engine(model, CopyDrafting(15), lanes=1, entries=entries, pool=pool) as served:
        resumed = [await collect(served, request) for request in asked]
        one_by_one = served.health()
    with engine(model, CopyDrafting(15), lanes=4, entries=entries, pool=pool) as served:
        together = await asyncio.gather(*(collect(served, request) for request in asked))
    assert resumed == fresh
    assert together == fresh
    assert one_by_one.kept_prompts <= entries
    # An extended prompt reads its last block and what is new; an identical one reads nothing.
    share = one_by_one.cached_tokens_total / one_by_one.prompt_tokens_total
    assert share > (0.6 if entries == 64 else 0.3)


@pytest.mark.parametrize(("dtype", "kv"), [("fp32", "bf16"), ("fp32", "fp8"), ("bf16", "fp8")])
async def test_every_form_of_activations_and_of_stored_rows_is_as_exact(
    directory: pathlib.Path, dtype: str, kv: RowForm
) -> None:
    model = load_rank(directory, SoloGroup(), DEVICE, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    asked = [*requests(), *conversation(3, 130)]
    with engine(model, CopyDrafting(0), lanes=1, kv=kv) as served:
        alone = [await collect(served, request) for request in asked]
    oracle = Oracle({request.prompt_ids: reply for request, reply in zip(asked, alone, strict=True)}, 0.3)
    with engine(model, oracle, lanes=4, entries=8, pool=24 * GRID, kv=kv) as served:
        together = await asyncio.gather(*(collect(served, request) for request in asked))
        accepted = served.health().accepted_total
    assert together == alone
    assert accepted > 0


async def test_an_identical_prompt_is_answered_without_a_step_for_its_prompt(model: Glm5NextRank) -> None:
    request = GenerationRequest(tuple(range(1, 300)), 1, SamplingParams(temperature=0.0))
    with engine(model, CopyDrafting(0), lanes=1, entries=8) as served:
        first = await collect(served, request)
        steps = served.health().step
        assert await collect(served, request) == first
        assert served.health().step == steps
        longer = dataclasses.replace(request, max_new_tokens=5)
        assert (await collect(served, longer))[0][:1] == first[0]


async def test_requests_that_leave_change_nothing_for_the_others(
    model: Glm5NextRank, serial: dict[tuple[int, ...], Reply]
) -> None:
    endless = GenerationRequest(tuple(range(1, 300)), 3000, SamplingParams(temperature=0.0))
    with engine(model, CopyDrafting(15), lanes=4) as served:
        leaving = [served.submit(endless) for _ in range(2)]
        events = leaving[0].events()
        kept = [asyncio.create_task(collect(served, request)) for request in requests()]
        await anext(events)
        for reply in leaving:
            reply.cancel()
        replies = await asyncio.gather(*kept)
    assert replies == [serial[request.prompt_ids] for request in requests()]
