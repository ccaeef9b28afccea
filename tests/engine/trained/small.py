# SPDX-License-Identifier: Apache-2.0
"""A small batch of real cases, and an EXL3 encoder that takes no time, for tests of what is done with them."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import torch
from sparkpair.checkpoint.exl3_encode import CODEBOOK_RMS
from sparkpair.kernels.weights import Exl3Weight
from torch import Tensor
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


def drawn(matrix: Tensor, bits: int, generator: torch.Generator) -> Exl3Weight:
    """An EXL3 linear of the matrix's size in every sense, at once: any bits are a valid trellis."""
    rows, columns = matrix.shape
    trellis = torch.randint(-(2**15), 2**15, (columns // 16, rows // 16, 16 * bits), generator=generator)
    suh = torch.full((columns,), float(matrix.std()) / CODEBOOK_RMS)
    return Exl3Weight(trellis.to(torch.int16), suh.half(), torch.ones(rows).half())
