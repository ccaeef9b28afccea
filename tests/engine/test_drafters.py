# SPDX-License-Identifier: Apache-2.0
"""The drafters that guess with weights: under every policy a reply is the serial one, right and wrong guesses alike."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator

import pytest
import torch
from sparkpair.cache.keeper import PoolKeeper
from sparkpair.checkpoint.rank_weights import Layout, RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.comm.lockstep import StepRunner
from sparkpair.drafting.drafter import RankDrafter
from sparkpair.drafting.files import find_dflash2, find_mtp
from sparkpair.drafting.mtp import MtpDrafter
from sparkpair.drafting.orders import DraftOrders, Kind, parse_policy
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.drafting.source import DFlash2Source, MtpSource
from sparkpair.engine import EngineSettings, LeaderEngine
from sparkpair.errors import UserError
from sparkpair.grid import GRID
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.mtp import MtpHead
from sparkpair.request import GenerationRequest
from sparkpair.stream import Stream

from tests.engine.agreeing import write_agreeing, write_agreeing_drafter
from tests.engine.devices import DEVICE
from tests.engine.test_exactness import POOL, Reply, collect, conversation, requests

# The least and the most that may be accepted of all drafts of a run, so that both happen.
SOME = (0.05, 0.95)


class CountedCopies(CopyDrafting):
    """Copy drafting that counts what it proposes."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.proposed = 0

    def propose(self, stream: Stream, most: int) -> list[int]:
        found = super().propose(stream, most)
        self.proposed += len(found)
        return found


@dataclasses.dataclass(frozen=True)
class Loaded:
    directory: pathlib.Path
    model: Glm5NextRank
    drafters: dict[Kind, RankDrafter]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load_agreeing(tmp_path_factory)


def load_agreeing(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A model and drafters that often agree with it."""
    torch.set_num_threads(1)
    directory: pathlib.Path = tmp_path_factory.mktemp("agreeing")
    write_agreeing(directory, 7, strength=0.1)
    config = load_text_config(directory)
    weights = RankWeights(Checkpoint(directory), config, world=1, rank=0, dtype=torch.float32, device=DEVICE)
    model = Glm5NextRank(config, weights, SoloGroup())
    blocks = tmp_path_factory.mktemp("agreeing") / "drafter"
    write_agreeing_drafter(blocks, directory)
    block_drafter = DFlash2Source(find_dflash2(blocks, config, 1)).load(model, weights)
    return Loaded(directory, model, {"mtp": MtpDrafter(MtpHead(model, weights)), "dflash2": block_drafter})


@contextlib.contextmanager
def engine(
    loaded: Loaded,
    kind: Kind | None,
    policy: str,
    *,
    lanes: int,
    copies: CopyDrafting | None = None,
    entries: int = 0,
) -> Iterator[LeaderEngine]:
    deaths: list[Exception] = []
    drafter = None if kind is None else loaded.drafters[kind]
    made = LeaderEngine(
        StepRunner(loaded.model, loaded.model.new_pool(POOL, drafter_layers=1), drafter),
        None,
        EngineSettings(context=4096, lanes=lanes, window_rows=32, fill_budget_s=0.001),
        copies or CopyDrafting(0),
        PoolKeeper(POOL, most_kept=entries, unit=GRID),
        None if kind is None else DraftOrders(parse_policy(policy, kind)),
        world=1,
        on_death=deaths.append,
    )
    made.start()
    yield made
    made.stop()
    assert deaths == []


@pytest.fixture(scope="module")
def serial(loaded: Loaded) -> dict[GenerationRequest, Reply]:
    """Every request alone and without drafts."""

    async def run() -> dict[GenerationRequest, Reply]:
        with engine(loaded, None, "0", lanes=1) as served:
            replies = {request: await collect(served, request) for request in requests()}
            # A prompt that holds the reply to its own end, so that there is something to copy.
            quoted = requests()[0]
            repeating = dataclasses.replace(
                quoted, prompt_ids=quoted.prompt_ids + replies[quoted][0] + quoted.prompt_ids, stop_ids=frozenset()
            )
            return {**replies, repeating: await collect(served, repeating)}

    return asyncio.run(run())


async def ask_all(served: LeaderEngine, asked: Iterable[GenerationRequest]) -> list[Reply]:
    return list(await asyncio.gather(*(collect(served, request) for request in asked)))


# Alone, and four at once beside copy drafts.
@pytest.mark.parametrize(
    ("kind", "policy", "lanes", "copies"),
    [
        ("mtp", "4", 1, 0),
        ("mtp", "4", 4, 15),
        ("mtp", "a:0.3:0.5", 4, 15),
        ("mtp", "c5:0.3", 1, 0),
        ("dflash2", "f7", 4, 15),
        ("dflash2", "fa:0.3:0.5", 1, 0),
        ("dflash2", "fc5:0.3", 4, 15),
        ("dflash2", "fnc7:0.3", 1, 0),
        ("dflash2", "fnc7:0.3", 4, 15),
    ],
)
async def test_every_policy_replies_as_serial_decoding_does(
    loaded: Loaded, serial: dict[GenerationRequest, Reply], kind: Kind, policy: str, lanes: int, copies: int
) -> None:
    counted = CountedCopies(copies)
    with engine(loaded, kind, policy, lanes=lanes, copies=counted) as served:
        replies = await ask_all(served, serial)
        health = served.health()
    assert replies == list(serial.values())
    assert (counted.proposed > 0) == (copies > 0)
    assert health.drafted_total > counted.proposed + 50
    assert SOME[0] < health.accepted_total / health.drafted_total < SOME[1]


@pytest.mark.parametrize(("kind", "policy", "lanes"), [("mtp", "3", 4), ("dflash2", "fnc7:0.1", 1)])
async def test_resumed_prompts_bring_the_drafters_state_and_reply_as_fresh_ones(
    loaded: Loaded, kind: Kind, policy: str, lanes: int
) -> None:
    asked = [request for pair in zip(conversation(3, 70), conversation(4, 70), strict=False) for request in pair]
    # States that a request without drafts left behind serve one with drafts.
    mixed = [dataclasses.replace(request, draft=index % 3 > 0) for index, request in enumerate([*asked, *asked])]
    with engine(loaded, None, "0", lanes=1) as served:
        fresh = [await collect(served, request) for request in mixed]
    with engine(loaded, kind, policy, lanes=lanes, entries=64) as served:
        resumed = await ask_all(served, mixed)
        health = served.health()
    assert resumed == fresh
    assert health.cached_tokens_total > health.prompt_tokens_total / 3
    assert SOME[0] < health.accepted_total / health.drafted_total < SOME[1]


@pytest.mark.parametrize(("kind", "policy"), [("mtp", "3"), ("dflash2", "f3")])
async def test_a_resumed_state_drafts_as_the_one_it_was_kept_from(loaded: Loaded, kind: Kind, policy: str) -> None:
    request = dataclasses.replace(conversation(3, 70)[-1], max_new_tokens=30)
    found = []
    with engine(loaded, kind, policy, lanes=1, entries=8) as served:
        for _ in range(2):
            before = served.health()
            await collect(served, request)
            after = served.health()
            found.append((after.drafted_total - before.drafted_total, after.accepted_total - before.accepted_total))
    assert after.cached_tokens_total == len(request.prompt_ids)
    assert found[0] == found[1]
    assert found[0][1] > 0


async def test_requests_that_ask_for_serial_decoding_are_not_drafted_for(
    loaded: Loaded, serial: dict[GenerationRequest, Reply]
) -> None:
    with engine(loaded, "mtp", "3", lanes=4, copies=CopyDrafting(15)) as served:
        replies = await ask_all(served, [dataclasses.replace(request, draft=False) for request in serial])
        assert served.health().drafted_total == 0
    assert replies == list(serial.values())


def test_the_estimate_counts_what_loading_the_drafter_takes(loaded: Loaded) -> None:
    config, checkpoint = load_text_config(loaded.directory), Checkpoint(loaded.directory)
    for rank in range(2):
        weights = RankWeights(checkpoint, config, world=2, rank=rank, dtype=torch.float32, device=DEVICE)
        source = MtpSource(find_mtp(checkpoint, config))
        source.load(loaded.model, weights)
        need = source.need(Layout(2, rank, torch.float32))
        assert need.held == weights.bytes_held
        assert need.stored == weights.bytes_read


def test_a_checkpoint_without_an_mtp_layer_is_refused(loaded: Loaded) -> None:
    config = dataclasses.replace(load_text_config(loaded.directory), mtp_layers=0)
    with pytest.raises(UserError, match=r"--drafter mtp: .* has no MTP layer .*--drafter none"):
        find_mtp(Checkpoint(loaded.directory), config)
