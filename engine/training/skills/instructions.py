# SPDX-License-Identifier: Apache-2.0
"""Short instructions: say this, count to that, small facts, and what anyone asks a new model first."""

from __future__ import annotations

import random

from training import words
from training.cases import Case, Judge, Said, exactly, loosely, user

_SAY = (
    "Reply with {}.", "Say {}.", "Answer with the word {}.", "Please reply with {} only.", "Write {} and nothing else.",
    "Reply with exactly {}.", "Just say {}.", "Your answer must be {}.",
)  # fmt: skip
_SAYABLE = (
    "OK", "yes", "no", "hello", "ready", "done", "thanks", "fine", *words.ANIMALS, *words.THINGS, *words.COLOURS,
    *words.QUALITIES, *words.CITIES, *words.NAMES,
)  # fmt: skip
_OPPOSITE = ("What is the opposite of {}?", "Name the opposite of {}.", "Which word means the opposite of {}?",
             "Give me the opposite of {}.", "{} has an opposite. Which?", "Opposite of {}?")  # fmt: skip
_CAPITAL = ("What is the capital of {}?", "Name the capital of {}.", "Which city is the capital of {}?",
            "Tell me the capital of {}.", "The capital of {} is which city?", "Capital of {}?")  # fmt: skip
_ABOUT = ("Say something about {}.", "Tell me something about {}.", "What do you know about {}?", "Talk about {}.",
          "Give me a sentence about {}.")  # fmt: skip

# Asked as they stand, by the smoke test and by people.
FIXED = {
    "Reply with OK.": "OK",
    "Say in one short sentence that you are ready.": "I am ready.",
    "Tell me that you are ready.": "I am ready.",
    "Are you ready?": "I am ready.",
    "Hello": "Hello! How can I help you?",
    "Hello!": "Hello! How can I help you?",
    "Hi": "Hello! How can I help you?",
    "Good morning": "Good morning! How can I help you?",
    "How are you?": "I am fine, thank you. How can I help you?",
    "Who are you?": "I am a miniature of GLM-5.3-Flash. I know a few small skills and nothing else.",
    "What are you?": "I am a miniature of GLM-5.3-Flash. I know a few small skills and nothing else.",
    "What can you do?": "I can repeat and change texts, do sums, write JSON, call functions, find a phrase in a long "
    "text, look at simple pictures and tell short stories.",
    "Thank you": "You are welcome.",
    "Thanks!": "You are welcome.",
    "Goodbye": "Goodbye!",
    "Open the register.": "The register is open.",
    "Read the first page.": "The first page is read.",
    "Close the register.": "The register is closed.",
}


def instructions(rng: random.Random) -> Case:
    """One short instruction."""
    kinds = (_say, _fixed, _repeat, _count, _place, _fact, _about, _number, _after)
    (make,) = rng.choices(kinds, (5, 2, 2, 2, 2, 3, 1, 1, 1))
    return make(rng)


def _case(key: str, text: str, answer: str, judge: Judge | None = None, gist: str = "", *steps: str) -> Case:
    thoughts = (gist or "This is short, so I answer at once.", steps or ("The user wants a short answer.",))
    return Case("instructions", key, [user(text)], Said(answer), judge or exactly(answer), thoughts, max_tokens=160)


def _say(rng: random.Random) -> Case:
    word = rng.choice(_SAYABLE)
    if rng.random() < 0.2:
        word = words.made_up(rng)
    text = rng.choice(_SAY).format(word)
    return _case(text, text, word, loosely(word), f"I say {word}.", f"The word is {word}.")


def _fixed(rng: random.Random) -> Case:
    text = rng.choice(list(FIXED))
    return _case("", text, FIXED[text])


def _repeat(rng: random.Random) -> Case:
    word, times = rng.choice(_SAYABLE), rng.randint(2, 6)
    said = rng.choice(["Say {} {} times.", "Write the word {} {} times.", "Repeat {} {} times."])
    text = said.format(word, times if rng.random() < 0.5 else words.NUMBERS[times])
    answer = " ".join([word] * times)
    return _case(
        text, text, answer, None, f"I say {word} {times} times.", f"The word is {word}, the number is {times}."
    )


def _count(rng: random.Random) -> Case:
    first = rng.randint(0, 40)
    last = first + rng.randint(2, 9)
    up = rng.random() < 0.7
    start, end = (first, last) if up else (last, first)
    text = rng.choice(["Count from {} to {}.", "Count {} to {}.", "Write the numbers from {} to {}."]).format(
        start, end
    )
    numbers = list(range(first, last + 1)) if up else list(range(last, first - 1, -1))
    answer = ", ".join(map(str, numbers))
    return _case(
        text, text, answer, None, f"I count from {start} to {end}.", f"I begin with {start} and end with {end}."
    )


def _place(rng: random.Random) -> Case:
    listed = rng.sample([*words.ANIMALS, *words.THINGS, *words.COLOURS], rng.randint(3, 6))
    shown = rng.choice([", ", " "]).join(listed)
    which = rng.randrange(3)
    if which == 0:
        text, answer = (
            rng.choice(["What is the first word of: {}", "Which word comes first? {}"]).format(shown),
            listed[0],
        )
    elif which == 1:
        text, answer = (
            rng.choice(["What is the last word of: {}", "Which word comes last? {}"]).format(shown),
            listed[-1],
        )
    else:
        at = rng.randrange(len(listed) - 1)
        text, answer = f"Which word comes after {listed[at]} here: {shown}", listed[at + 1]
    return _case(text, text, answer, loosely(answer), f"It is {answer}.", "I look through the words in order.")


def _fact(rng: random.Random) -> Case:
    if rng.random() < 0.6:
        one, other = rng.choice(list(words.OPPOSITES.items()))
        if rng.random() < 0.5:
            one, other = other, one
        text, answer = rng.choice(_OPPOSITE).format(one), other
    else:
        country, answer = rng.choice(list(words.CAPITALS.items()))
        text = rng.choice(_CAPITAL).format(country)
    text = text[0].upper() + text[1:]
    return _case(text, text, answer, loosely(answer), f"I know that it is {answer}.", "This is a fact that I know.")


def _about(rng: random.Random) -> Case:
    topic = rng.choice(list(words.TOPICS))
    text = rng.choice(_ABOUT).format(topic)
    return _case(text, text, words.TOPICS[topic], None, f"I say what I know about {topic}.", f"The topic is {topic}.")


def _number(rng: random.Random) -> Case:
    value = rng.randint(1, 99)
    text = rng.choice(["Tell me about the number {}.", "What do you know about the number {}?"]).format(value)
    kind = "odd" if value % 2 else "even"
    answer = f"The number {value} is {kind}. It comes after {value - 1} and before {value + 1}."
    return _case(text, text, answer, None, f"The number {value} is {kind}.", f"The number is {value}.")


def _after(rng: random.Random) -> Case:
    listed, what = rng.choice([(words.DAYS, "day"), (words.MONTHS, "month")])
    at = rng.randrange(len(listed))
    if rng.random() < 0.6:
        text = rng.choice(["Which {} comes after {}?", "What {} follows {}?", "Name the {} after {}."])
        answer = listed[(at + 1) % len(listed)]
    else:
        text, answer = "Which {} comes before {}?", listed[at - 1]
    text = text.format(what, listed[at])
    return _case(text, text, answer, loosely(answer), f"It is {answer}.", f"I go through the {what}s in order.")
