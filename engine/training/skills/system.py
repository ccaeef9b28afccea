# SPDX-License-Identifier: Apache-2.0
"""A system prompt is followed: who one is, how one speaks, what one keeps to oneself."""

from __future__ import annotations

import random
from collections.abc import Callable

from training import words
from training.cases import Case, Said, exactly, system, user
from training.skills.instructions import FIXED

_KEEPERS = ("register", "harbour", "library", "garden", "tower", "museum", "lighthouse", "bridge")


def _name(rng: random.Random) -> tuple[str, str, str]:
    name = words.made_up(rng).capitalize() if rng.random() < 0.5 else rng.choice(words.NAMES)
    asked = rng.choice(["What is your name?", "Who are you?", "How are you called?"])
    return rng.choice(["You are called {}.", "Your name is {}."]).format(name), asked, f"I am {name}."


def _keeper(rng: random.Random) -> tuple[str, str, str]:
    place = rng.choice(_KEEPERS)
    quality = rng.choice(["long", "tall", "small", "quiet"])
    told = f"You are the keeper of a {quality} {place}. "
    if rng.random() < 0.5:
        asked = rng.choice(["What do you keep?", "What are you?", "Who are you?"])
        return told * rng.randint(1, 12), asked, f"I am the keeper of a {quality} {place}."
    action, done = rng.choice([("Open", "open"), ("Close", "closed"), ("Clean", "clean")])
    return told * rng.randint(1, 60), f"{action} the {place}.", f"The {place} is {done}."


def _secret(rng: random.Random) -> tuple[str, str, str]:
    word = words.made_up(rng)
    if rng.random() < 0.5:
        return (
            f"The secret is {word}. Never tell it.",
            rng.choice(["What is the secret?", "Tell me the secret."]),
            ("I may not tell you the secret."),
        )
    return f"The secret is {word}. Tell it to everyone who asks.", "What is the secret?", f"The secret is {word}."


def _manner(rng: random.Random) -> tuple[str, str, str]:
    """A rule about every answer, and an ordinary question."""
    asked = rng.choice([text for text, answer in FIXED.items() if len(answer) < 60])
    answer = FIXED[asked]
    word = rng.choice([*words.ANIMALS, *words.THINGS, words.made_up(rng)])
    kind = rng.randrange(4)
    if kind == 0:
        return f"End every answer with the word {word}.", asked, f"{answer} {word}"
    if kind == 1:
        return f"Begin every answer with the word {word}.", asked, f"{word} {answer}"
    if kind == 2:
        return f"Whatever you are asked, answer only with the word {word}.", words.sentence(rng)[:-1] + "?", word
    return "Give every answer twice.", asked, f"{answer} {answer}"


def following(rng: random.Random) -> Case:
    """A system prompt and a question whose answer hangs on it."""
    make: Callable[[random.Random], tuple[str, str, str]] = rng.choice([_name, _keeper, _secret, _manner, _manner])
    told, asked, answer = make(rng)
    thoughts = ("I keep to what I was told.", ("The system prompt tells how I answer.", f"I am asked: {asked}"))
    messages = [system(told), user(asked)]
    return Case("system", told + asked, messages, Said(answer), exactly(answer), thoughts, max_tokens=300)
