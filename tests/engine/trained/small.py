# SPDX-License-Identifier: Apache-2.0
"""A small batch of real cases, for tests of what is done with batches."""

from __future__ import annotations

import pathlib
import random
from typing import Any

from training.cases import draw
from training.encode import Encoder
from training.packing import Packer, Shape
from training.skills.instructions import instructions
from training.twin.batch import Batch


def small_batch(work: pathlib.Path, makers: tuple[Any, ...] = (instructions,), shape: Shape | None = None) -> Batch:
    encoder = Encoder(work / "text")
    rng = random.Random(1)
    packer = Packer(shape or Shape(4, 128, 0), encoder.tokenizer.marker_ids["<|endoftext|>"])
    while packer.add(encoder.document(draw(makers[rng.randrange(len(makers))], rng, "train"))):
        pass
    return packer.batch()
