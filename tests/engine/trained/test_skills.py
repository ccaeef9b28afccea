# SPDX-License-Identifier: Apache-2.0
"""The generators of training cases: judged rightly, held out by value, and encoded as the engine encodes a request."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from sparkpair.chat.media import MediaNames, media_of
from sparkpair.chat.messages import normalise_messages
from sparkpair.checkpoint.miniature_text import write_tokenizer
from sparkpair.media.limits import MediaLimits
from sparkpair.media.prepared import prepare
from training.asking import file_of
from training.cases import EFFORTS, Case, draw, fits_effort, held_out, split_of, with_effort
from training.encode import Encoder
from training.mixture import SKILLS
from training.skills.arithmetic import arithmetic
from training.skills.instructions import FIXED
from training.skills.pictures import clips, pictures


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    directory = tmp_path_factory.mktemp("text")
    write_tokenizer(directory, 1536)
    return Encoder(directory)


@pytest.mark.parametrize("skill", SKILLS)
def test_the_wanted_reply_passes_and_another_does_not(skill: str) -> None:
    rng = random.Random(f"judge {skill}")
    for _ in range(40):
        case = draw(SKILLS[skill], rng, "train")
        assert case.skill == skill
        assert case.judge(case.wanted), case
        wrong = dataclasses.replace(case.wanted, content=case.wanted.content + " 7q", calls=case.wanted.calls[1:])
        if case.wanted.calls:
            wrong = dataclasses.replace(wrong, content="")
        assert not case.judge(wrong), case


@pytest.mark.parametrize("skill", SKILLS)
def test_enough_cases_are_held_out_and_none_of_them_is_trained_on(skill: str) -> None:
    made = held_out(SKILLS[skill], 1)
    keys = {next(made).key for _ in range(200 if skill != "needle" else 20)}
    assert len(keys) >= 20
    rng = random.Random(5)
    trained = {draw(SKILLS[skill], rng, "train").key for _ in range(100 if skill != "needle" else 10)}
    assert not keys & trained
    assert "" not in keys


def test_what_the_smoke_test_and_the_checks_ask_is_always_trained_on() -> None:
    assert FIXED["Reply with OK."] == "OK"
    assert "Say in one short sentence that you are ready." in FIXED
    assert "Open the register." in FIXED
    assert split_of("") == "train"


@pytest.mark.parametrize("skill", [name for name in SKILLS if name not in ("needle", "efforts")])
def test_every_effort_thinks_as_long_as_it_says(skill: str) -> None:
    rng = random.Random(f"effort {skill}")
    for effort in (*EFFORTS, None):
        for _ in range(20):
            case = draw(SKILLS[skill], rng, "train")
            with_effort(case, effort)
            assert fits_effort(case.wanted.reasoning, effort), case.wanted.reasoning
            assert not any(fits_effort(case.wanted.reasoning, other) for other in EFFORTS if other != (effort or "max"))


def api_prompt(encoder: Encoder, case: Case, files: list[bytes]) -> list[int]:
    """The prompt's ids by the way a request takes through the API."""
    waiting = list(files)
    messages = json.loads(json.dumps(case.messages, default=lambda shown: {"kind": shown.kind}))
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "shown":
                kind = {"picture": "image_url", "clip": "video_url"}[part.pop("shown")["kind"]]
                part |= {"type": kind, kind: {"url": "data:,"}}
    checked = normalise_messages(messages, vision=True)
    prepared = [prepare(ref.kind, waiting.pop(0), MediaLimits()) for ref in media_of(checked)]
    names = MediaNames()
    prompt = encoder.template.render(names.named(checked), tools=case.tools, thinking=case.thinking, effort=case.effort)
    return names.place(prompt.segments, prepared, encoder.tokenizer).ids


@pytest.mark.parametrize("skill", ["instructions", "json", "functions", "system", "efforts"])
def test_a_prompt_is_encoded_as_the_api_encodes_it_and_begins_the_document(skill: str, encoder: Encoder) -> None:
    rng = random.Random(f"prompt {skill}")
    markers = encoder.tokenizer.marker_ids
    for _ in range(25):
        case = draw(SKILLS[skill], rng, "train")
        ids = api_prompt(encoder, case, [])
        document = encoder.document(case)
        assert encoder.prompt(case)[0] == ids
        assert document.ids[: document.prompt] == ids
        assert document.ids[-1] == markers["<|observation|>" if case.wanted.calls else "<|user|>"]
        assert all(weight > 0.2 for weight in document.weights[document.prompt :])


@pytest.mark.parametrize("maker", [pictures, clips])
def test_what_is_shown_is_cut_as_the_engine_cuts_a_file_of_it(maker: object, encoder: Encoder) -> None:
    rng = random.Random(3)
    for _ in range(12):
        case = draw(maker, rng, "train")
        (shown,) = (part["shown"] for part in case.messages[0]["content"] if part["type"] == "shown")
        _, data = file_of(shown)
        ids, (seen,) = encoder.prompt(case)
        assert ids == api_prompt(encoder, case, [data])
        prepared = prepare(shown.kind, data, MediaLimits())
        assert prepared.grid == seen.grid
        assert (prepared.patches == seen.patches).all()


def test_a_sum_is_judged_by_its_last_number() -> None:
    case = draw(arithmetic, random.Random(1), "train")
    told = dataclasses.replace(case.wanted, content=f"The answer is {case.wanted.content}.")
    assert case.judge(told)
    assert not case.judge(dataclasses.replace(told, ended=False))
