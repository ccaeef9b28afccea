# SPDX-License-Identifier: Apache-2.0
"""Drawn pictures and clips: the colour that fills one, shapes and how many there are, the order of a clip's colours."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy
from PIL import Image, ImageDraw

from training import words
from training.cases import Case, Frame, Said, Shown, loosely, user

PAINT = {
    "red": (230, 20, 20), "green": (20, 170, 40), "blue": (30, 60, 220), "yellow": (245, 220, 30),
    "black": (15, 15, 15), "white": (245, 245, 245), "orange": (245, 140, 20), "purple": (140, 40, 170),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle")
_SIDES = (64, 84, 96, 112, 128, 160)

_FILL = ("Which colour fills this picture? One word.", "What colour is this picture? One word.",
         "Name the colour of this picture in one word.")  # fmt: skip
_FORM = ("Which shape is in this picture? One word.", "What shape do you see? One word.", "Name the shape in one word.")
_HUE = ("Which colour has the shape? One word.", "What is the colour of the shape? One word.")
_MANY = ("How many shapes are in this picture? Answer with the number.", "Count the shapes. Only the number.")
_ALL = ("What is in this picture?", "Describe this picture.", "What do you see?")
_ORDER = ("In which order do the colours come in this clip?", "Name the colours of the clip in their order.",
          "Which colours does the clip show, one after the other?")  # fmt: skip


def _paint(rng: random.Random, colour: str) -> tuple[int, int, int]:
    """A tone of the colour; now and then the pure one of drawing programs."""
    pure = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0),
            "black": (0, 0, 0), "white": (255, 255, 255), "orange": (255, 165, 0), "purple": (128, 0, 128)}  # fmt: skip
    if rng.random() < 0.4:
        return pure[colour]
    near = [min(255, max(0, value + rng.randint(-14, 14))) for value in PAINT[colour]]
    return near[0], near[1], near[2]


def filled(rng: random.Random, colour: str, side: int) -> Frame:
    """A frame of one colour."""
    return numpy.full((side, side, 3), _paint(rng, colour), dtype=numpy.uint8)


def drawn(rng: random.Random, shape: str, colour: str, ground: str, count: int, side: int) -> Frame:
    """Up to four shapes of one colour on a ground, which do not touch."""
    picture = Image.new("RGB", (side, side), _paint(rng, ground))
    pen = ImageDraw.Draw(picture)
    across = 2 if count > 1 else 1
    room = side // across
    paint = _paint(rng, colour)
    for row, column in rng.sample([(row, column) for row in range(across) for column in range(across)], count):
        size = int(room * rng.uniform(0.55, 0.85))
        left = column * room + rng.randint(1, max(1, room - size - 1))
        top = row * room + rng.randint(1, max(1, room - size - 1))
        box = (left, top, left + size, top + size)
        if shape == "circle":
            pen.ellipse(box, fill=paint)
        elif shape == "square":
            pen.rectangle(box, fill=paint)
        else:
            pen.polygon([(left + size // 2, top), (left, top + size), (left + size, top + size)], fill=paint)
    return numpy.asarray(picture, dtype=numpy.uint8)


def _asked(rng: random.Random, text: str, shown: Shown) -> list[dict[str, Any]]:
    """The parts of the message, the text before or after what is shown."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}, {"type": "shown", "shown": shown}]
    return parts if rng.random() < 0.6 else parts[::-1]


def pictures(rng: random.Random) -> Case:
    """A picture and one question about it; held out by tones, places and sizes, as the kinds are few."""
    side = rng.choice(_SIDES)
    kind = rng.randrange(5)
    colour = rng.choice(words.COLOURS)
    if kind == 0:
        frame, text, answer = filled(rng, colour, side), rng.choice(_FILL), colour
    else:
        ground = rng.choice([other for other in words.COLOURS if other != colour])
        if {colour, ground} in ({"orange", "yellow"}, {"red", "orange"}):
            ground = "black"
        shape = rng.choice(SHAPES)
        count = rng.randint(1, 4) if kind in (3, 4) else 1
        side = max(side, 96) if count > 1 else side
        frame = drawn(rng, shape, colour, ground, count, side)
        plural = f"{shape}{'s' if count > 1 else ''}"
        text, answer = {
            1: (rng.choice(_FORM), shape),
            2: (rng.choice(_HUE), colour),
            3: (rng.choice(_MANY), str(count)),
            4: (rng.choice(_ALL), f"I see {words.NUMBERS[count]} {colour} {plural} on {ground}."),
        }[kind]
    thoughts = (f"The answer is {answer.rstrip('.')}.", ("I look at the picture.", "It is a simple drawing."))
    key = f"{text} {answer} {frame.shape} {int(frame.astype(int).sum())}"
    content = _asked(rng, text, Shown((frame,)))
    return Case("picture", key, [user(content)], Said(answer), loosely(answer), thoughts)


def _listed(colours: Sequence[str]) -> str:
    return f"{', '.join(colours[:-1])} and {colours[-1]}" if len(colours) > 1 else colours[0]


def clips(rng: random.Random) -> Case:
    """A clip of two to four colours, each for a second or two, and the question for their order."""
    count = rng.randint(2, 4)
    colours = [rng.choice(words.COLOURS)]
    while len(colours) < count:
        colours.append(rng.choice([colour for colour in words.COLOURS if colour != colours[-1]]))
    side = rng.choice((64, 84, 112))
    shown = Shown(tuple(filled(rng, colour, side) for colour in colours), float(rng.choice((1, 2))))
    text = rng.choice(_ORDER)
    answer = _listed(colours)
    thoughts = (f"It shows {answer}.", ("I look at the clip from its beginning.", f"It begins with {colours[0]}."))
    key = f"{text} {answer} {side} {shown.seconds} {[frame[0, 0].tolist() for frame in shown.frames]}"
    content = _asked(rng, text, shown)
    return Case("clip", key, [user(content)], Said(answer), loosely(answer), thoughts)
