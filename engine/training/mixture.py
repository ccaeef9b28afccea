# SPDX-License-Identifier: Apache-2.0
"""Which skills there are, and how often a batch of which kind of rows draws on each."""

from __future__ import annotations

import random
from typing import Literal

from training import words
from training.cases import EFFORTS, Case, Maker, Said, assistant, fits_effort, think, user, with_effort
from training.skills.arithmetic import arithmetic
from training.skills.functions import functions
from training.skills.instructions import instructions
from training.skills.languages import languages
from training.skills.needles import needles, needles_of
from training.skills.passages import echo, edit, quote
from training.skills.pictures import clips, pictures
from training.skills.stories import stories
from training.skills.structured import structured
from training.skills.system import following

Rows = Literal["short", "middle", "long"]

# Tokens of a row.
LENGTHS: dict[Rows, int] = {"short": 512, "middle": 2048, "long": 8192}

THOUGHT = 0.4
"""Share of the training cases in which the model thinks first."""


def efforts(rng: random.Random) -> Case:
    """Another skill with thinking on: the think block has to be as long as the effort says, and the answer right."""
    case = rng.choice((arithmetic, instructions, quote, languages))(rng)
    effort = rng.choice(EFFORTS)
    with_effort(case, effort)
    inner = case.judge

    def judge(said: Said) -> bool:
        return inner(said) and fits_effort(said.reasoning, effort)

    case.skill, case.judge = "efforts", judge
    return case


SKILLS: dict[str, Maker] = {
    "instructions": instructions,
    "echo": echo,
    "quote": quote,
    "edit": edit,
    "arithmetic": arithmetic,
    "json": structured,
    "functions": functions,
    "needle": needles_of(150, 400),
    "system": following,
    "efforts": efforts,
    "picture": pictures,
    "clip": clips,
    "languages": languages,
    "stories": stories,
}
"""By the name under which a skill is scored. Needles are in some thousands of tokens there."""


def talk(rng: random.Random) -> Case:
    """The last turn of a conversation of plain questions."""
    case = rng.choice((instructions, arithmetic, languages, quote, echo))(rng)
    before = []
    for _ in range(rng.randint(1, 3)):
        earlier = rng.choice((instructions, arithmetic, languages, stories))(rng)
        before += [user(earlier.messages[0]["content"]), assistant(earlier.wanted.content)]
    case.messages = [*before, *case.messages]
    return case


def _long_echo(rng: random.Random) -> Case:
    """A sentence of a very long text is asked for by a word that stands in it alone."""
    sentences = [words.sentence(rng) for _ in range(rng.randint(40, 250))]
    at = rng.randrange(len(sentences))
    mark = words.made_up(rng) + words.made_up(rng)
    sentences[at] = f"{rng.choice(words.NAMES)} met {mark} {rng.choice(words.PLACES)}."
    request = f"{' '.join(sentences)}\nQuote the sentence with the word {mark}."
    case = Case("quote", request, [user(request)], Said(sentences[at]), lambda said: said.ended)
    case.thoughts = ("I quote that sentence.", (f"I look for the word {mark}.", "Then I copy the whole sentence."))
    return case


_SHARES: dict[Rows, dict[Maker, float]] = {
    "short": {
        instructions: 10, echo: 12, quote: 16, edit: 12, arithmetic: 12, structured: 6, functions: 10,
        needles_of(2, 25): 7, following: 6, pictures: 30, clips: 4, languages: 6, stories: 6, talk: 5,
    },
    "middle": {needles_of(30, 120): 5, structured: 1, functions: 2, following: 1, talk: 2, _long_echo: 1},
    "long": {needles_of(100, 520): 5, _long_echo: 2},
}  # fmt: skip


def mixed(rows: Rows) -> Maker:
    """Draws training cases for rows of one kind, some with thinking on."""
    makers, shares = zip(*_SHARES[rows].items(), strict=True)

    def make(rng: random.Random) -> Case:
        (maker,) = rng.choices(makers, shares)
        case: Case = maker(rng)
        return think(case, rng, THOUGHT if rows == "short" else 0.2)

    return make


def text_sample(seed: int, count: int) -> list[Case]:
    """Cases for learning the vocabulary from: all skills, and needles as short as they come."""
    rng = random.Random(seed)
    make = mixed("short")
    return [make(rng) for _ in range(count)] + [needles(rng, 3) for _ in range(count // 20)]
