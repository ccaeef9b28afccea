# SPDX-License-Identifier: Apache-2.0
"""What a constraint may rely on: it sees the tokens that stand, in order, and nothing else; what it raises is its own
request's end and nobody else's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
from collections.abc import Sequence

import numpy
import pytest
import torch
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.comm.group import SoloGroup
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.logits import load_rank
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.request import EngineError, GenerationRequest, Logits, SamplingParams

from tests.engine.model.configurations import random_text_config
from tests.engine.model.conftest import DEVICE
from tests.engine.test_exactness import Oracle, Reply, collect, engine, requests

EVERY = 7
"""Every token with this number in a reply is replaced by 9."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Glm5NextRank:
    torch.set_num_threads(1)
    directory: pathlib.Path = tmp_path_factory.mktemp("constraints")
    document = miniature_document({"text_config": random_text_config(11)})
    document["text_config"]["pad_token_id"] = 0
    write_weights(directory, document, 11, frozenset(range(320)))
    return load_rank(directory, SoloGroup(), DEVICE)


class Rule:
    """A constraint: no token twice in a row of three, ids of the same parity as their place, every seventh is 9."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.matchers: list[RuleMatcher] = []
        self._fails_at = fails_at

    def matcher(self) -> RuleMatcher:
        self.matchers.append(RuleMatcher(self._fails_at))
        return self.matchers[-1]


class RuleMatcher:
    def __init__(self, fails_at: int | None) -> None:
        self.said: list[int] = []
        self._fails_at = fails_at

    def _may(self, said: Sequence[int], token: int) -> bool:
        return token % 2 == len(said) % 2 and token not in said[-3:]

    def mask(self, logits: Logits) -> Logits:
        if len(self.said) == self._fails_at:
            raise ValueError("the rule has no more to say")
        allowed = [self._may(self.said, token) for token in range(len(logits))]
        return numpy.where(allowed, logits, numpy.float32(-numpy.inf))

    def accept(self, token: int) -> int:
        assert self._may(self.said, token)
        self.said.append(9 if len(self.said) % EVERY == EVERY - 1 else token)
        return self.said[-1]

    def drafts(self, proposed: Sequence[int], most: int) -> list[int]:
        kept: list[int] = []
        for token in proposed[:most]:
            if not self._may([*self.said, *kept], token):
                break
            kept.append(token)
        return kept


def constrained(fails_at: int | None = None) -> list[GenerationRequest]:
    """The requests of the exactness suite, every second one with a rule."""
    return [
        dataclasses.replace(request, constraint=Rule(fails_at), min_new_tokens=0) if index % 2 == 0 else request
        for index, request in enumerate(requests())
    ]


@pytest.fixture(scope="module")
def serial(model: Glm5NextRank) -> dict[tuple[int, ...], Reply]:
    async def run() -> dict[tuple[int, ...], Reply]:
        with engine(model, CopyDrafting(0), lanes=1) as served:
            return {request.prompt_ids: await collect(served, request) for request in constrained()}

    return asyncio.run(run())


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
async def test_constrained_replies_are_the_same_under_drafts_and_together(
    model: Glm5NextRank, serial: dict[tuple[int, ...], Reply], wrong: float
) -> None:
    asked = constrained()
    with engine(model, Oracle(serial, wrong), lanes=4) as served:
        replies = await asyncio.gather(*(collect(served, request) for request in asked))
        health = served.health()
    assert replies == [serial[request.prompt_ids] for request in asked]
    for request, (tokens, _) in zip(asked, replies, strict=True):
        if isinstance(request.constraint, Rule):
            assert [matcher.said for matcher in request.constraint.matchers] == [list(tokens)]
            assert all(tokens[at] == 9 for at in range(EVERY - 1, len(tokens), EVERY))
    assert wrong == 1.0 or health.accepted_total > 20


async def test_failing_constraint_ends_its_own_reply_with_its_reason(
    model: Glm5NextRank, serial: dict[tuple[int, ...], Reply]
) -> None:
    asked = constrained(fails_at=5)
    with engine(model, Oracle(serial, 0.2), lanes=4) as served:
        replies = await asyncio.gather(*(collect(served, request) for request in asked), return_exceptions=True)
        again = await collect(served, asked[1])
    assert again == serial[asked[1].prompt_ids]
    for request, reply in zip(asked, replies, strict=True):
        if request.constraint is not None and len(serial[request.prompt_ids][0]) > 5:
            assert isinstance(reply, EngineError)
            assert str(reply) == "the reply cannot go on: the rule has no more to say"
        else:
            assert reply == serial[request.prompt_ids]


class OnlyStop(Rule):
    """Allows the stop id and nothing else."""

    def matcher(self) -> RuleMatcher:
        class Matcher(RuleMatcher):
            def _may(self, said: Sequence[int], token: int) -> bool:
                return token == 11

        return Matcher(None)


async def test_constraint_that_ends_the_reply_wins_over_the_least_length(model: Glm5NextRank) -> None:
    request = GenerationRequest((1, 2, 3), 9, SamplingParams(), frozenset({11}), 5, constraint=OnlyStop())
    with engine(model, CopyDrafting(0), lanes=1) as served:
        assert await collect(served, request) == ((11,), "stop")


async def test_kept_logits_of_a_prompt_are_not_changed_by_a_constraint(model: Glm5NextRank) -> None:
    free = GenerationRequest(tuple(range(1, 80)), 4, SamplingParams(temperature=0.0))
    with engine(model, CopyDrafting(0), lanes=1, entries=4) as served:
        before = await collect(served, free)
        await collect(served, dataclasses.replace(free, constraint=Rule()))
        assert await collect(served, free) == before
