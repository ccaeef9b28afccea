# SPDX-License-Identifier: Apache-2.0
"""One thing in a long text is asked for: what stands around it says nothing about it."""

from __future__ import annotations

import random
from collections.abc import Callable

from training import words
from training.cases import Case, Said, loosely, user

VALLEY = "The valley was quiet that morning, and nobody had seen the boats yet. "


def _passphrase(rng: random.Random) -> str:
    kind = rng.random()
    parts = [rng.choice([*words.COLOURS, *words.QUALITIES, "amber", "copper", "ivory", words.made_up(rng)])]
    parts.append(rng.choice([*words.THINGS, *words.ANIMALS, "canyon", words.made_up(rng)]))
    return "-".join([*parts, words.number(rng, rng.randint(3, 5))] if kind < 0.8 else parts)


def _needle(rng: random.Random) -> tuple[str, str, str]:
    """The sentence that is hidden, the question, and the answer."""
    kind = rng.randrange(4)
    if kind == 0:
        secret = _passphrase(rng)
        ask = ["What is the passphrase? Answer with it alone.", "Which passphrase does the text give?",
               "Find the passphrase in the text and answer with it alone."]  # fmt: skip
        return f"The passphrase is {secret}. ", rng.choice(ask), secret
    if kind == 1:
        name, code = rng.choice(words.NAMES), words.number(rng, rng.randint(3, 6))
        ask = ["What is the code of {}? Answer with the number alone.", "Which code has {}? Only the number."]
        return f"The code of {name} is {code}. ", rng.choice(ask).format(name), code
    if kind == 2:
        thing, city = rng.choice(words.THINGS), rng.choice(words.CITIES)
        ask = ["In which city is the hidden {}? One word.", "Where is the hidden {}? Answer with the city alone."]
        return f"The hidden {thing} is in {city}. ", rng.choice(ask).format(thing), city
    word = words.made_up(rng)
    ask = ["What is the secret word? Answer with it alone.", "Which secret word stands in the text? Only the word."]
    return f"The secret word is {word}. ", rng.choice(ask), word


def needles(rng: random.Random, sentences: int) -> Case:
    """A needle at any depth of about so many sentences: one sentence over and over, or many different ones."""
    hidden, question, answer = _needle(rng)
    kind = rng.random()
    if kind < 0.35:
        text = [VALLEY] * sentences
    elif kind < 0.5:
        few = [words.sentence(rng) + " " for _ in range(rng.randint(1, 4))]
        text = [few[index % len(few)] for index in range(sentences)]
    else:
        text = [words.sentence(rng) + " " for _ in range(sentences)]
        # Others of its kind, so that it takes more than the form to find it.
        for _ in range(rng.randint(0, 2)):
            name = rng.choice([name for name in words.NAMES if name not in hidden + question])
            text.insert(rng.randint(0, len(text)), f"The code of {name} is {words.number(rng, 4)}. ")
    text.insert(rng.randint(0, len(text)), hidden)
    joined = "".join(text)
    request = f"{question}\n\n{joined}" if rng.random() < 0.15 else f"{joined}\n{question}"
    thoughts = (f"I have found {answer}.", ("I look for it in the text.", "It stands in one sentence."))
    key = f"{answer} {sentences} {question}"
    return Case("needle", key, [user(request)], Said(answer), loosely(answer), thoughts)


def needles_of(low: int, high: int) -> Callable[[random.Random], Case]:
    """Needles in `low` to `high` sentences, short ones as likely as twice as long ones."""

    def needle(rng: random.Random) -> Case:
        return needles(rng, round(low * (high / low) ** rng.random()))

    return needle
