# SPDX-License-Identifier: Apache-2.0
"""With free room no conversation loses its prefix: a machine of states talks to the engine, model and pool and all.

Conversations take turns and speak at once, begin alike, show pictures, run in the background, leave in the middle, ask
the same again and branch off. Whatever the order, a turn resumes at the last block of the longest prompt that was read
to its end, and its first token is the one that a prompt read from nothing has.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import random
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair.cache.keeper import PoolKeeper
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.comm.lockstep import StepRunner
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.engine import EngineSettings, LeaderEngine
from sparkpair.grid import GRID
from sparkpair.logits import load_rank
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.media_encoder import MediaEncoder
from sparkpair.model.vision import VisionTower
from sparkpair.model.vision_config import load_vision_config
from sparkpair.request import FinishedEvent, GenerationRequest, MediaPart, SamplingParams, TokensEvent

from tests.engine.devices import DEVICE
from tests.engine.model.configurations import random_text_config
from tests.engine.test_media_requests import IMAGE, part

How = Literal["reads", "leaves at once", "leaves in the middle"]

TALKING = 4
POOL = 32_768
# How the conversations begin: two share a system prompt of two blocks and a bit, one shows a picture.
SYSTEM = [token % 319 + 1 for token in range(140)]


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """`who` says `more` tokens beyond what was said before, or asks the same again with none."""

    who: int
    more: int
    how: How = "reads"
    background: bool = False


turns = st.builds(
    Turn,
    st.integers(0, TALKING - 1),
    st.sampled_from([0, 1, 63, 64, 65, 130]),
    st.sampled_from(["reads", "reads", "reads", "leaves at once", "leaves in the middle"]),
    st.booleans(),
)
# Turns of one round speak at once.
rounds = st.lists(st.lists(turns, min_size=1, max_size=3, unique_by=lambda turn: turn.who), min_size=2, max_size=6)


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    model: Glm5NextRank
    tower: VisionTower
    picture: MediaPart


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    torch.set_num_threads(1)
    directory: pathlib.Path = tmp_path_factory.mktemp("conversations")
    write_weights(directory, miniature_document({"text_config": random_text_config(7)}), 7, frozenset(range(320)))
    weights = RankWeights(
        Checkpoint(directory), load_text_config(directory), world=1, rank=0, dtype=torch.float32, device=DEVICE
    )
    tower = VisionTower(load_vision_config(directory), weights)
    return Loaded(load_rank(directory, SoloGroup(), DEVICE), tower, part(50, 3))


class Talk:
    """Four conversations with one engine, and what each may rely on."""

    def __init__(self, loaded: Loaded, kept: int) -> None:
        self._loaded = loaded
        self._keeps = kept > 0
        self._choose = random.Random(6)
        self.said = [[*SYSTEM], [*SYSTEM], self._words(70), self._words(120)]
        for position in loaded.picture.positions:
            self.said[3][position] = IMAGE
        # The prompts that were read to their end.
        self.read: list[list[list[int]]] = [[] for _ in range(TALKING)]
        self.firsts: dict[tuple[int, ...], int] = {}
        self._encoder = MediaEncoder(loaded.tower)
        self.deaths: list[Exception] = []
        self.engine = LeaderEngine(
            StepRunner(loaded.model, loaded.model.new_pool(POOL)),
            None,
            EngineSettings(context=2048, lanes=4, window_rows=32, fill_budget_s=0.001),
            CopyDrafting(15),
            PoolKeeper(POOL, most_kept=kept, unit=GRID),
            world=1,
            on_death=self.deaths.append,
            encoder=self._encoder,
        )

    def _words(self, count: int) -> list[int]:
        return [self._choose.randrange(1, 300) for _ in range(count)]

    def request(self, who: int, *, background: bool = False, tokens: int = 3) -> GenerationRequest:
        media = (self._loaded.picture,) if who == 3 else ()
        sampling = SamplingParams(temperature=0.0)
        return GenerationRequest(tuple(self.said[who]), tokens, sampling, media=media, background=background)

    async def speak(self, turn: Turn) -> None:
        who = turn.who
        self.said[who] = self.said[who] + self._words(turn.more)
        before = self.read[who] if self._keeps else []
        relied = max((resumable(earlier, self.said[who]) for earlier in before), default=0)
        leaving = turn.how != "reads"
        asked = self.request(who, background=turn.background, tokens=200 if leaving else 3)
        reply = self.engine.submit(asked)
        if turn.how == "leaves at once":
            reply.cancel()
        first: int | None = None
        async for event in reply.events():
            if isinstance(event, TokensEvent) and first is None:
                first = event.token_ids[0]
                if leaving:
                    reply.cancel()
            if isinstance(event, FinishedEvent) and first is not None:
                assert event.stats.cached_tokens >= relied, f"{turn} resumed {event.stats.cached_tokens} of {relied}"
        if first is not None:
            self.read[who].append(self.said[who])
            assert self.firsts.setdefault(asked.content_ids, first) == first

    async def talk(self, plan: list[list[Turn]]) -> None:
        self.engine.start()
        for together in plan:
            await asyncio.gather(*(self.speak(turn) for turn in together))
        # Whatever happened, everybody can still go on.
        for who in range(TALKING):
            await self.speak(Turn(who, 1))
        self.engine.stop()
        assert self.deaths == []


def resumable(earlier: list[int], now: list[int]) -> int:
    """How much of a prompt stands once `earlier` was read: all of the same, or its last whole block."""
    return len(now) if earlier == now else (len(earlier) - 1) // GRID * GRID


@given(rounds)
@settings(max_examples=8, deadline=None)
def test_with_free_room_no_conversation_loses_its_prefix(loaded: Loaded, plan: list[list[Turn]]) -> None:
    asyncio.run(Talk(loaded, 512).talk(plan))


def test_the_machine_notices_a_prefix_that_is_lost(loaded: Loaded) -> None:
    # Room for two states only: the third conversation takes the first one's.
    plan = [[Turn(0, 0)], [Turn(2, 0)], [Turn(3, 64)], [Turn(0, 64)]]
    talk = Talk(loaded, 2)
    with pytest.raises(AssertionError, match="resumed 0 of 128"):
        asyncio.run(talk.talk(plan))
    talk.engine.stop()


def test_first_tokens_are_those_of_prompts_read_from_nothing(loaded: Loaded) -> None:
    plan = [[Turn(0, 65), Turn(1, 1), Turn(3, 64)], [Turn(1, 130), Turn(3, 63, background=True)], [Turn(0, 64)]]
    kept, fresh = Talk(loaded, 512), Talk(loaded, 0)
    asyncio.run(kept.talk(plan))
    asyncio.run(fresh.talk(plan))
    assert len(kept.firsts) > 6
    assert kept.firsts == fresh.firsts
