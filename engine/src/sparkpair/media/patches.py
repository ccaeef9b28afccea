# SPDX-License-Identifier: Apache-2.0
"""Pixels to patches and back to numbers: the order the vision tower reads them in, and its normalisation."""

from __future__ import annotations

import numpy
import numpy.typing

from sparkpair.media.canvas import Canvas

Pixels = numpy.typing.NDArray[numpy.uint8]
Grid = tuple[int, int, int]

PATCH = 14
MERGE = 2
CHANNELS = 3
FRAMES = 2

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def place(content: Pixels, canvas: Canvas) -> Pixels:
    """`content` [h, w, 3] at the top left of a black canvas, [height, width, 3]."""
    placed = numpy.zeros((canvas.height, canvas.width, CHANNELS), dtype=numpy.uint8)
    placed[: content.shape[0], : content.shape[1]] = content
    return placed


def cut(frames: list[Pixels]) -> tuple[Pixels, Grid]:
    """Patches [t * gh * gw, 1176] uint8 of an even number of canvases [height, width, 3], and the grid (t, gh, gw).

    Patches run through pairs of frames, then merge blocks of 2 x 2 row by row, then within a block. A patch's values
    run through channel, time, y, x.
    """
    pixels = numpy.stack(frames)
    count, height, width, _ = pixels.shape
    times, rows, columns = count // FRAMES, height // PATCH, width // PATCH
    split = pixels.reshape(times, FRAMES, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, CHANNELS)
    ordered = split.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return ordered.reshape(times * rows * columns, CHANNELS * FRAMES * PATCH**2), (times, rows, columns)


def normalise(patches: Pixels) -> numpy.typing.NDArray[numpy.float32]:
    """The numbers the tower reads, fp32 in the same shape: scaled to 0..1, then by the mean and deviation a channel."""
    values = patches.astype(numpy.float32).reshape(patches.shape[0], CHANNELS, -1) / numpy.float32(255.0)
    mean = numpy.array(_MEAN, dtype=numpy.float32).reshape(1, CHANNELS, 1)
    deviation = numpy.array(_DEVIATION, dtype=numpy.float32).reshape(1, CHANNELS, 1)
    result: numpy.typing.NDArray[numpy.float32] = ((values - mean) / deviation).reshape(patches.shape)
    return result
