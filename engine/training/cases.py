# SPDX-License-Identifier: Apache-2.0
"""What a skill's generator makes: a conversation, the reply that is wanted, and a judge of what was said instead.

A case belongs to training or to the held-out ones by its key alone, so the two never share one.
"""

from __future__ import annotations

import dataclasses
import json
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy
import numpy.typing

Effort = Literal["low", "high", "max"]
EFFORTS: tuple[Effort, ...] = ("low", "high", "max")
Split = Literal["train", "held out"]

Frame = numpy.typing.NDArray[numpy.uint8]

# One key in this many is held out.
HELD_OUT = 8

# Words of the think block: low effort at most the first, maximal effort at least the second, high effort between.
BRIEF, LONG = 14, 40


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A picture (one frame, no seconds) or a clip (each frame for `seconds`): uint8 [height, width, 3] a frame."""

    frames: tuple[Frame, ...]
    seconds: float = 0.0

    @property
    def kind(self) -> Literal["picture", "clip"]:
        """What it is called in a prompt."""
        return "clip" if self.seconds else "picture"


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What a model replied; `calls` are names with their arguments. `ended`: by itself, not for want of tokens."""

    content: str
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    ended: bool = True


Judge = Callable[[Said], bool]
Message = dict[str, Any]


@dataclasses.dataclass(slots=True)
class Case:
    """`messages` are OpenAI's, except that a part `{"type": "shown", "shown": Shown}` is a picture or clip.

    `wanted` is the reply of the training text. `thoughts` are what may be thought before it: the gist, and the steps.
    `schema` asks for an answer of that form. Without a key a case is always trained on and never held out.
    """

    skill: str
    key: str
    messages: list[Message]
    wanted: Said
    judge: Judge
    thoughts: tuple[str, tuple[str, ...]] = ("", ())
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    thinking: bool = False
    effort: Effort | None = None
    schema: dict[str, Any] | None = None
    max_tokens: int = 320


Maker = Callable[[random.Random], Case]


def split_of(key: str) -> Split:
    """Where a case of this key belongs."""
    return "held out" if key and zlib.crc32(key.encode()) % HELD_OUT == 0 else "train"


def draw(maker: Maker, rng: random.Random, split: Split) -> Case:
    """A case of that split. Raises LookupError when the maker gives none in many tries."""
    for _ in range(1000):
        case = maker(rng)
        if split_of(case.key) == split:
            return case
    raise LookupError(f"{maker.__name__} makes no case that is {split}")


def held_out(maker: Maker, seed: int) -> Iterator[Case]:
    """Held-out cases, each key once, for ever."""
    rng = random.Random(f"held out {seed}")
    seen: set[str] = set()
    while True:
        case = draw(maker, rng, "held out")
        if case.key not in seen:
            seen.add(case.key)
            yield case


def think(case: Case, rng: random.Random, share: float) -> Case:
    """The case with thinking on in that share of cases that have thoughts, at any effort."""
    if case.thoughts[0] and rng.random() < share:
        with_effort(case, rng.choice([*EFFORTS, None]))
    return case


def with_effort(case: Case, effort: Effort | None) -> None:
    """Turn thinking on: a sentence at low effort, the steps at high effort, the steps and a check at maximal effort."""
    gist, steps = case.thoughts
    case.thinking, case.effort = True, effort
    if effort == "low":
        text = gist
    elif effort == "high":
        text = " ".join(["The request is clear, so I work it out in order.", *steps, gist])
    else:
        begin = "I read the request again to be sure what is asked for."
        check = "Now I check every step once more before I answer."
        end = "Both times I come to the same result, so this is what I say."
        text = " ".join([begin, *steps, gist, check, *steps, gist, end])
    case.wanted = dataclasses.replace(case.wanted, reasoning=text)


def fits_effort(reasoning: str, effort: Effort | None) -> bool:
    """Whether a think block is as long as its effort says."""
    words = len(reasoning.split())
    if effort == "low":
        return 0 < words <= BRIEF
    return words >= LONG if effort != "high" else BRIEF < words < LONG


def user(content: str | list[dict[str, Any]]) -> Message:
    """A user's message."""
    return {"role": "user", "content": content}


def system(content: str) -> Message:
    """A system message."""
    return {"role": "system", "content": content}


def assistant(content: str) -> Message:
    """An earlier answer."""
    return {"role": "assistant", "content": content}


def exactly(text: str) -> Judge:
    """The answer is this text, up to blanks around it."""
    return lambda said: said.ended and said.content.strip() == text.strip() and not said.calls


def loosely(text: str) -> Judge:
    """The answer is this text, up to capitals and a full stop."""

    def plain(words: str) -> str:
        return words.strip().strip(".!").casefold()

    return lambda said: said.ended and plain(said.content) == plain(text) and not said.calls


def same_json(value: Any) -> Judge:
    """The answer is JSON of this value, in the same order of keys."""
    wanted = json.dumps(value)

    def judge(said: Said) -> bool:
        try:
            return said.ended and json.dumps(json.loads(said.content)) == wanted
        except ValueError:
            return False

    return judge


def same_calls(*calls: tuple[str, dict[str, Any]]) -> Judge:
    """These functions were called with these arguments, in order, types included."""
    wanted = [(name, json.dumps(arguments, sort_keys=True)) for name, arguments in calls]
    return lambda said: [(name, json.dumps(args, sort_keys=True)) for name, args in said.calls] == wanted
