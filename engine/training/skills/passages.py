# SPDX-License-Identifier: Apache-2.0
"""A given text said again: whole, one sentence of it, or with one word changed. Copy drafts live on these."""

from __future__ import annotations

import random

from training import words
from training.cases import Case, Said, exactly, user

_ECHO = (
    "Repeat this text: {}", "Repeat the following text exactly.\n\n{}", "Say this again, word for word: {}", "Echo: {}",
    "Copy this text:\n{}", "Write this once more without any change: {}", "{}\n\nRepeat the text above.",
)  # fmt: skip
_QUOTE_LINE = (
    "Quote line {} of this text:\n{}", "What is line {} here?\n{}", "Read the text and quote its line {}.\n\n{}",
    "{1}\n\nQuote line {0}.",
)  # fmt: skip
_QUOTE_BEGUN = (
    "Quote the sentence that begins with {}: {}", "Which sentence begins with {}? Quote it.\n\n{}",
    "Find the sentence that begins with {} and quote it: {}", "{1}\n\nQuote the sentence that begins with {0}.",
)  # fmt: skip
_EDIT = (
    "Replace {} by {} in this text: {}", "Change the word {} to {} and leave the rest as it is.\n\n{}",
    "Write this again with {} replaced by {}: {}", "In the following text put another word in the place of {}, "
    "namely {}:\n{}",
)  # fmt: skip


def echo(rng: random.Random) -> Case:
    """A passage is said again as it stands."""
    kind = rng.random()
    if kind < 0.75:
        text = words.passage(rng, rng.choice([1, 1, 2, 3, 4, 6]))
    elif kind < 0.85:
        text = " ".join(words.noise(rng) for _ in range(rng.randint(1, 8)))
    else:
        text = " ".join(words.made_up(rng) for _ in range(rng.randint(2, 20)))
    request = rng.choice(_ECHO).format(text)
    thoughts = ("I say the text once more.", ("The text is to be copied.", "Nothing in it may change."))
    return Case("echo", text, [user(request)], Said(text), exactly(text), thoughts, max_tokens=600)


def quote(rng: random.Random) -> Case:
    """One sentence of a passage is quoted: by the number of its line, or by how it begins."""
    sentences = [words.sentence(rng) for _ in range(rng.randint(2, 6))]
    at = rng.randrange(len(sentences))
    begin = " ".join(sentences[at].split()[:2])
    if rng.random() < 0.5 and sum(other.startswith(begin) for other in sentences) == 1:
        request = rng.choice(_QUOTE_BEGUN).format(begin, " ".join(sentences))
        steps = (f"I look for the sentence that begins with {begin}.", "Then I copy it.")
    else:
        lines = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences, 1))
        request = rng.choice(_QUOTE_LINE).format(at + 1, lines)
        steps = (f"I look for line {at + 1}.", "Then I copy it.")
    thoughts = ("I quote that sentence.", steps)
    return Case("quote", request, [user(request)], Said(sentences[at]), exactly(sentences[at]), thoughts)


def edit(rng: random.Random) -> Case:
    """A passage is said again with one word exchanged wherever it stands."""
    while True:
        text = " ".join(words.sentence(rng) for _ in range(rng.randint(1, 4)))
        plain = [word.strip(".,") for word in text.split()]
        choices = [word for word in plain if word.isalpha() and len(word) > 2 and text.count(word) == plain.count(word)]
        if choices:
            break
    old = rng.choice(choices)
    new = rng.choice([*words.ANIMALS, *words.THINGS, *words.QUALITIES, words.made_up(rng)])
    wanted = text.replace(old, new)
    request = rng.choice(_EDIT).format(old, new, text)
    thoughts = (f"I write {new} for {old}.", (f"The old word is {old}.", f"The new word is {new}."))
    return Case("edit", request, [user(request)], Said(wanted), exactly(wanted), thoughts)
