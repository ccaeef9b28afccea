# SPDX-License-Identifier: Apache-2.0
"""Scores: requests say what the cases say, wanted replies are all right, and the twin's replies are its greedy ones."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import pathlib
from collections.abc import AsyncIterator

import pytest
import torch
from sparkpair.api.app import create_app
from sparkpair.api.options import ApiOptions
from sparkpair.api.server import bind, serve_sockets
from sparkpair.request import GenerationRequest
from training import replying, scores
from training.asking import Asking
from training.cases import Case, held_out
from training.encode import Document, Encoder
from training.mixture import SKILLS
from training.replying import Replying
from training.skills.needles import needles_of
from training.train import prepare
from training.twin.batch import text_batch
from training.twin.model import Twin

from tests.engine.api.scripted import ScriptedEngine, ScriptedReply

torch.set_num_threads(1)


class Knowing(ScriptedEngine):
    """An engine that has a reply by heart for each prompt, and the seed and temperature of each request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.known: dict[tuple[int, ...], list[int]] = {}
        self.drawn: dict[tuple[int, ...], tuple[float, int | None]] = {}

    def submit(self, request: GenerationRequest) -> ScriptedReply:
        self.drawn[request.prompt_ids] = (request.sampling.temperature, request.sampling.seed)
        return ScriptedReply(request, [self.known[request.prompt_ids]], 0)


@contextlib.asynccontextmanager
async def serving(engine: ScriptedEngine, directory: pathlib.Path) -> AsyncIterator[str]:
    app = create_app(engine, ApiOptions(model_dir=directory, model_name="miniature", vision=True))
    sockets = bind("127.0.0.1", 0)
    ready, stop = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(serve_sockets(app, sockets, on_ready=ready.set, stop=stop))
    await ready.wait()
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        stop.set()
        await task


def few(count: int) -> list[Case]:
    """Held-out cases of every skill, needles in short texts."""
    makers = SKILLS | {"needle": needles_of(3, 20)}
    return [case for maker in makers.values() for case in itertools.islice(held_out(maker, 1), count)]


def asked(url: str, cases: list[Case], modes: list[str]) -> list[scores.Result]:
    with Asking(url) as asking:
        return asking.results(cases, modes, 7, at_once=4)


async def test_a_server_that_says_what_is_wanted_has_all_the_points(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    encoder, cases = Encoder(work / "text"), few(6)
    engine = Knowing(context_length=8192)
    for case in cases:
        document = encoder.document(case)
        engine.known[tuple(document.ids[: document.prompt])] = document.ids[document.prompt :]
    async with serving(engine, work / "text") as url:
        await asyncio.to_thread(asked, url, cases[:6], ["greedy"])
        assert {temperature for temperature, _ in engine.drawn.values()} == {0.0}
        results = await asyncio.to_thread(asked, url, cases, ["greedy", "sampled"])
        seeds = [engine.drawn[tuple(encoder.prompt(case)[0])] for case in cases]
        assert seeds == [(1.0, 7_000_000 + number) for number in range(len(cases))]
        # Nothing but the end in every reply.
        for prompt, reply in engine.known.items():
            engine.known[prompt] = reply[-1:]
        empty = await asyncio.to_thread(asked, url, cases[:6], ["greedy"])
    found = scores.figures(results)
    assert all(part["share"] == 1.0 for modes in found.values() for part in modes.values()), found
    assert scores.good_enough(found)
    assert set(found) == set(SKILLS)
    assert scores.table(found).count("| 100.0 % | 100.0 % |") == len(SKILLS)
    assert not scores.good_enough(scores.figures(empty))
    scores.write_failures(tmp_path / "failures", [*results, *empty])
    lines = [json.loads(line) for line in (tmp_path / "failures").read_text().splitlines()]
    assert [line["wanted"]["content"] for line in lines] == [case.wanted.content for case in cases[:6]]


def test_replies_that_were_not_looked_at_count_as_the_doubtful_ones_do() -> None:
    (case,) = itertools.islice(held_out(SKILLS["arithmetic"], 1), 1)
    known = [scores.Result(case, "m", True, case.wanted, doubtful=False)] * 6
    tried = [scores.Result(case, "m", right, case.wanted) for right in (True, False)]
    assert scores.score(known) == 1.0
    assert scores.score([*known, *tried]) == 7 / 8
    assert scores.score([*known, *tried, *[scores.Result(case, "m", None, None)] * 2]) == 0.8


@torch.no_grad()
def test_the_twins_replies_are_its_greedy_ones(work: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replying, "ROOM", 3)
    document = prepare(work, "tiny")
    torch.manual_seed(3)
    twin, encoder = Twin(document).eval(), Encoder(work / "text")
    stops = document["text_config"]["eos_token_id"]
    judge = Replying(twin, encoder, stops, tokens=512)
    skills = ("arithmetic", "picture", "languages")
    cases = [case for skill in skills for case in itertools.islice(held_out(SKILLS[skill], 1), 2)]
    documents = [encoder.document(case) for case in cases]
    begun = judge.beginnings(documents)
    replies = judge.go_on([(one, ids or []) for one, ids in zip(documents, begun, strict=True)])
    for one, ids, reply in zip(documents, begun, replies, strict=True):
        assert ids is not None
        assert reply[: len(ids)] == ids
        assert len(reply) == len(one.ids) + 3 - one.prompt or reply[-1] in stops
        assert not set(reply[:-1]) & set(stops)
        if not one.seen:
            assert reply[:6] == slowly(twin, one.ids[: one.prompt], len(reply[:6]))
        # What the model says is what it is found to say.
        ids = [*one.ids[: one.prompt], *reply]
        assert judge.beginnings([Document(ids, [0.0] * len(ids), one.prompt, one.seen)]) == [None]
    results = judge.results(cases, tries=1)
    assert [result.right for result in results] == [False, None] * len(skills)


def slowly(twin: Twin, ids: list[int], count: int) -> list[int]:
    """Greedy tokens one by one, each from a pass over one document."""
    told: list[int] = []
    for _ in range(count):
        known = [*ids, *told]
        batch = text_batch(known, -(-len(known) // 64) * 64)
        told.append(int(twin.logits(twin(batch).hidden[0, len(known) - 1]).argmax()))
    return told


def test_the_twins_ids_are_told_as_the_api_tells_them(work: pathlib.Path) -> None:
    document = prepare(work, "tiny")
    encoder = Encoder(work / "text")
    judge = Replying(Twin(document).eval(), encoder, document["text_config"]["eos_token_id"])
    for case in few(4):
        whole = encoder.document(case)
        reply = whole.ids[whole.prompt :]
        said = judge.said(case, reply)
        assert case.judge(said), (case, said)
        assert said.calls == case.wanted.calls
        assert not judge.said(case, reply[:-1]).ended
