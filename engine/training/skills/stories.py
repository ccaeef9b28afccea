# SPDX-License-Identifier: Apache-2.0
"""A story of about a hundred tokens that keeps to what it was asked to be about, from a small grammar with choices."""

from __future__ import annotations

import random
import re

from training import words
from training.cases import Case, Judge, Said, user

_ASK = (
    "Tell me a story about {name}, a {animal} and a {colour} {thing}.",
    "Write a short story about {name} with a {animal} and a {colour} {thing}.",
    "I want to hear a story. It should be about {name}, a {animal} and a {colour} {thing}.",
    "A story please: {name}, a {animal}, a {colour} {thing}.",
)
_WEATHER = ("warm", "cold", "quiet", "windy", "bright")

# One of each in this order; a choice in braces is free, names in angles come from the request.
_SENTENCES = (
    ("Once there was a child called <name>, who had a <animal> and a <colour> <thing>.",
     "<name> lived with a <animal> in a small house, and the best thing in it was a <colour> <thing>."),
    ("One {weather} morning the <thing> was gone.", "On a {weather} day <name> could not find the <thing>."),
    ("<name> looked {place}, but there was nothing.", "First <name> searched {place} and found only dust."),
    ("Then the <animal> ran {place} and made a loud noise.", "Then the <animal> began to dig {place}."),
    ("There it was: the <colour> <thing> lay under a stone.", "There lay the <colour> <thing>, wet but not broken."),
    ("<name> laughed and gave the <animal> a piece of bread.", "<name> thanked the <animal> and carried it home."),
    ("From that day on they kept the <thing> {place}.", "Since then the <colour> <thing> has stood {place}."),
    ("And if nobody has moved it, it is still there.", "That is how <name> and the <animal> became friends for ever."),
)  # fmt: skip


def _filled(form: str, about: dict[str, str]) -> str:
    for name, value in about.items():
        form = form.replace(f"<{name}>", value)
    return form


def follows(about: dict[str, str]) -> Judge:
    """The answer is a story of the grammar about these things."""
    choices = {"weather": _WEATHER, "place": words.PLACES}
    parts = []
    for forms in _SENTENCES:
        some = []
        for form in forms:
            pattern = re.escape(_filled(form, about)).replace(r"\{", "{").replace(r"\}", "}")
            for name, values in choices.items():
                pattern = pattern.replace(f"{{{name}}}", f"(?:{'|'.join(map(re.escape, values))})")
            some.append(pattern)
        parts.append(f"(?:{'|'.join(some)})")
    story = re.compile(" ".join(parts))
    return lambda said: said.ended and story.fullmatch(said.content.strip()) is not None


def stories(rng: random.Random) -> Case:
    """A story about someone, an animal and a thing."""
    about = {
        "name": rng.choice(words.NAMES),
        "animal": rng.choice(words.ANIMALS),
        "colour": rng.choice(words.COLOURS),
        "thing": rng.choice(words.THINGS),
    }
    request = rng.choice(_ASK).format(**about)
    told = [
        _filled(rng.choice(forms), about)
        .replace("{weather}", rng.choice(_WEATHER))
        .replace("{place}", rng.choice(words.PLACES))
        for forms in _SENTENCES
    ]
    thoughts = (
        f"I tell of {about['name']}.",
        (f"There is a {about['animal']} and a {about['colour']} {about['thing']}.", "Something is lost and found."),
    )
    key = " ".join(about.values())
    return Case("stories", key, [user(request)], Said(" ".join(told)), follows(about), thoughts, max_tokens=400)
