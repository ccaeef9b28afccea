# SPDX-License-Identifier: Apache-2.0
"""The same small sums and words in English and in German; the answer is in the language of the question."""

from __future__ import annotations

import random

from training import words
from training.cases import Case, Said, exactly, user

_GERMAN_ASK = ("Wie viel ist {} {} {}?", "Was ist {} {} {}?", "Rechne {} {} {}.")
_ENGLISH_ASK = ("In a whole sentence, what is {} {} {}?", "Say in a sentence how much {} {} {} is.")
_TO_GERMAN = ("What is {} in German?", "How do you say {} in German?", "Translate {} into German.")
_TO_ENGLISH = ("Was heißt {} auf Englisch?", "Wie sagt man {} auf Englisch?", "Übersetze {} ins Englische.")


def languages(rng: random.Random) -> Case:
    """A sum or a word, in one of the two languages."""
    german = rng.random() < 0.6
    if rng.random() < 0.6:
        return _sum(rng, german)
    one, other = rng.choice(list(words.GERMAN.items()))
    if german:
        request = rng.choice(_TO_ENGLISH).format(other)
        answer = f"{other} heißt auf Englisch {one}."
        thoughts = (f"Es heißt {one}.", ("Die Frage ist auf Deutsch.", "Das Wort kenne ich."))
    else:
        request = rng.choice(_TO_GERMAN).format(one)
        answer = f"In German it is {other}."
        thoughts = (f"It is {other}.", ("The question is in English.", "I know this word."))
    return Case("languages", request, [user(request)], Said(answer), exactly(answer), thoughts)


def _sum(rng: random.Random, german: bool) -> Case:
    one, other = rng.randint(0, 12), rng.randint(0, 12)
    spelt = rng.random() < 0.5
    numbers = words.GERMAN_NUMBERS if german else words.NUMBERS
    left, right = (numbers[value] if spelt else str(value) for value in (one, other))
    request = rng.choice(_GERMAN_ASK if german else _ENGLISH_ASK).format(left, "plus", right)
    answer = f"Das ist {one + other}." if german else f"That is {one + other}."
    if german:
        thoughts = (f"{one} plus {other} ist {one + other}.", ("Die Frage ist auf Deutsch.", "Ich rechne zusammen."))
    else:
        thoughts = (f"{one} plus {other} is {one + other}.", ("The question is in English.", "I add the numbers."))
    return Case("languages", request, [user(request)], Said(answer), exactly(answer), thoughts)
