# SPDX-License-Identifier: Apache-2.0
"""Several ranks are as exact as one: mixed requests together, one after the other and each alone reply the same."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import threading
from collections.abc import Iterator

import pytest
import torch
from sparkpair.cache.keeper import PoolKeeper
from sparkpair.comm.control import FollowerLink, Leader
from sparkpair.comm.group import Group
from sparkpair.comm.local import join_store, local_group, open_store
from sparkpair.comm.lockstep import StepRunner
from sparkpair.drafting.policy import CopyDrafting, Drafting
from sparkpair.engine import EngineSettings, LeaderEngine, follow
from sparkpair.grid import GRID
from sparkpair.logits import load_rank

from tests.engine.agreeing import write_agreeing
from tests.engine.devices import DEVICE, ranks_as_threads
from tests.engine.test_exactness import Reply, collect, conversation, requests

LOOPBACK = "127.0.0.1"
PATIENCE = 60.0
POOL = 48 * GRID


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made: pathlib.Path = tmp_path_factory.mktemp("ranks")
    # Weakened, so that it repeats itself and copied drafts are often right.
    write_agreeing(made, 7, strength=0.05)
    return made


@contextlib.contextmanager
def engine(
    directory: pathlib.Path, world: int, drafting: Drafting, *, lanes: int, entries: int
) -> Iterator[LeaderEngine]:
    """Rank 0 of `world` ranks that are threads of this process, over their real control channel and exchange."""
    store, leader = open_store(world), Leader(LOOPBACK, 0, world)
    port = int(leader._listener.getsockname()[1])
    offer = {"pool_tokens": POOL}

    def runner(group: Group) -> StepRunner:
        model = load_rank(directory, group, DEVICE)
        return StepRunner(model, model.new_pool(POOL))

    def run(rank: int) -> None:
        torch.get_num_threads()  # so that this thread learns how many there are
        link = FollowerLink(rank, LOOPBACK, port, PATIENCE)
        link.join({}, offer, PATIENCE)
        follow(runner(local_group(join_store(store.port, world), rank, world)), link.receive)
        link.leave("the test is over")

    followers = [threading.Thread(target=run, args=(rank,)) for rank in range(1, world)]
    for follower in followers:
        follower.start()
    leader.join({}, offer, PATIENCE, lambda line: None)
    leader.broadcast({"welcome": offer})
    deaths: list[Exception] = []
    made = LeaderEngine(
        runner(local_group(store, 0, world)),
        leader,
        EngineSettings(context=POOL, lanes=lanes, window_rows=32, fill_budget_s=0.001),
        drafting,
        PoolKeeper(POOL, most_kept=entries, unit=GRID),
        world=world,
        on_death=deaths.append,
    )
    made.start()
    yield made
    made.stop()
    leader.close({"stop": True})
    for follower in followers:
        follower.join()
    assert deaths == []


@ranks_as_threads
@pytest.mark.parametrize("world", [2, 3])
async def test_mixed_requests_at_once_and_staggered_equal_each_alone(directory: pathlib.Path, world: int) -> None:
    asked = [*requests(), *conversation(2, 70)]
    with engine(directory, world, CopyDrafting(0), lanes=1, entries=0) as served:
        alone = [await collect(served, request) for request in asked]
    with engine(directory, world, CopyDrafting(15), lanes=4, entries=24) as served:
        burst = await asyncio.gather(*(collect(served, request) for request in asked))
        running: list[asyncio.Task[Reply]] = []
        for request in asked:
            running.append(asyncio.create_task(collect(served, request)))
            steps = served.health().step
            while served.health().step < steps + 3 and not running[-1].done():
                await asyncio.wait(running, timeout=0.01)
        staggered = [await task for task in running]
        health = served.health()
    assert burst == alone
    assert staggered == alone
    assert health.accepted_total > 0
    assert health.cached_tokens_total > 0
