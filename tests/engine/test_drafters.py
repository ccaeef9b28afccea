# SPDX-License-Identifier: Apache-2.0
"""The drafters that guess with weights: under every policy a reply is the serial one, right and wrong guesses alike."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

import pytest
import torch
from sparkpair.cache.prompts import KeptPrompts
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.comm.lockstep import StepRunner
from sparkpair.drafting.drafter import RankDrafter
from sparkpair.drafting.mtp import MtpDrafter
from sparkpair.drafting.orders import DraftOrders, Kind, parse_policy
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.engine import EngineSettings, LeaderEngine
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.mtp import MtpHead
from sparkpair.request import EngineHealth, GenerationRequest

from tests.engine.agreeing import write_agreeing
from tests.engine.model.conftest import DEVICE
from tests.engine.test_exactness import Reply, collect, conversation, requests

# The least and the most that may be accepted of all drafts of a run, so that both happen.
SOME = (0.1, 0.95)


@dataclasses.dataclass(frozen=True)
class Loaded:
    model: Glm5NextRank
    drafters: dict[Kind, RankDrafter]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    torch.set_num_threads(1)
    directory: pathlib.Path = tmp_path_factory.mktemp("agreeing")
    write_agreeing(directory, 7, strength=0.15)
    config = load_text_config(directory)
    weights = RankWeights(
        Checkpoint(directory), config, world=1, rank=0, dtype=torch.float32, device=torch.device(DEVICE)
    )
    model = Glm5NextRank(config, weights, SoloGroup())
    return Loaded(model, {"mtp": MtpDrafter(MtpHead(model, weights))})


@contextlib.contextmanager
def engine(
    loaded: Loaded, kind: Kind | None, policy: str, *, lanes: int, copies: int = 0, entries: int = 0
) -> Iterator[LeaderEngine]:
    deaths: list[Exception] = []
    drafter = None if kind is None else loaded.drafters[kind]
    made = LeaderEngine(
        StepRunner(loaded.model, drafter),
        None,
        EngineSettings(context=4096, lanes=lanes, window_rows=32, fill_budget_s=0.001),
        CopyDrafting(copies),
        KeptPrompts(most_entries=entries, most_bytes=10**9, entry_bytes=1000, token_bytes=10),
        None if kind is None else DraftOrders(parse_policy(policy, kind)),
        world=1,
        on_death=deaths.append,
    )
    made.start()
    yield made
    made.stop()
    assert deaths == []


@pytest.fixture(scope="module")
def serial(loaded: Loaded) -> list[Reply]:
    """Every request alone and without drafts."""

    async def run() -> list[Reply]:
        with engine(loaded, None, "0", lanes=1) as served:
            return [await collect(served, request) for request in requests()]

    return asyncio.run(run())


async def ask_all(served: LeaderEngine) -> tuple[list[Reply], EngineHealth]:
    replies = await asyncio.gather(*(collect(served, request) for request in requests()))
    return list(replies), served.health()


@pytest.mark.parametrize(("lanes", "copies"), [(1, 0), (4, 15)], ids=["alone", "four with copy drafts"])
@pytest.mark.parametrize(
    ("kind", "policy"),
    [("mtp", "1"), ("mtp", "4"), ("mtp", "a"), ("mtp", "a:0.3:0.5"), ("mtp", "c5:0.3"), ("mtp", "auto")],
)
async def test_every_policy_replies_as_serial_decoding_does(
    loaded: Loaded, serial: list[Reply], kind: Kind, policy: str, lanes: int, copies: int
) -> None:
    with engine(loaded, kind, policy, lanes=lanes, copies=copies) as served:
        replies, health = await ask_all(served)
    assert replies == serial
    assert health.drafted_total > 50
    assert SOME[0] < health.accepted_total / health.drafted_total < SOME[1]
