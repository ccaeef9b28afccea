# SPDX-License-Identifier: Apache-2.0
"""Documents into batches of fixed shapes, drawn for ever by worker processes."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Iterator

import numpy
import numpy.typing
import torch
from sparkpair.grid import GRID
from sparkpair.media.patches import CHANNELS, FRAMES, MERGE, PATCH
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from training.cases import draw
from training.encode import Document, Encoder, Seen, noisy
from training.mixture import LENGTHS, Rows, mixed
from training.twin.batch import Batch

Integers = numpy.typing.NDArray[numpy.int64]

PATCH_VALUES = CHANNELS * FRAMES * PATCH**2

# Patches that stand in one row; a larger picture is left out.
PATCH_ROW = 512

# Documents that did not fit before a row is closed.
MISSES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A batch of `rows` rows of `length` tokens, with room for pictures in `pictured` rows of patches."""

    rows: int
    length: int
    pictured: int


def shape_of(kind: Rows, tokens: int, length: int | None = None) -> Shape:
    """The shape of a batch of about so many tokens; only short rows have pictures."""
    length = length or LENGTHS[kind]
    rows = max(1, tokens // length)
    return Shape(rows, length, max(1, tokens // 2048) if kind == "short" else 0)


def patch_places(height: int, width: int) -> Integers:
    """Row and column [height * width, 2] of every patch of a frame, in the order in which preprocessing leaves them."""
    place = numpy.arange(height * width)
    block, within = place // MERGE**2, place % MERGE**2
    down, across = block // (width // MERGE), block % (width // MERGE)
    return numpy.stack([down * MERGE + within // MERGE, across * MERGE + within % MERGE], axis=1)


class Packer:
    """One batch that is being filled."""

    def __init__(self, shape: Shape, pad_id: int) -> None:
        self._shape = shape
        size = (shape.rows, shape.length)
        # What is left over at the end of a row is a document of its own, which counts for nothing.
        self._tokens = numpy.full(size, pad_id, dtype=numpy.int64)
        self._document = numpy.full(size, -1, dtype=numpy.int64)
        self._position = numpy.zeros(size, dtype=numpy.int64)
        self._weights = numpy.zeros(size, dtype=numpy.float32)
        self._media = numpy.full(size, -1, dtype=numpy.int64)
        self._used = [0] * shape.rows
        self._count = [0] * shape.rows
        width = PATCH_ROW if shape.pictured else 0
        seen = (max(1, shape.pictured), width)
        self._patches = numpy.zeros((*seen, PATCH_VALUES), dtype=numpy.uint8)
        self._frame = numpy.full(seen, -1, dtype=numpy.int64)
        self._place = numpy.zeros((*seen, 2), dtype=numpy.int64)
        self._filled = [0] * shape.pictured
        self._frames = 0
        self.places: list[tuple[int, int]] = []
        """Row and first column of every document, in the order in which they were added."""

    @property
    def used(self) -> int:
        """Tokens that documents take, what fills them up included."""
        return sum(self._used)

    def add(self, document: Document) -> bool:
        """Put a document into the first row that has room; False when none has."""
        padded = -(-len(document.ids) // GRID) * GRID
        row = next((row for row, used in enumerate(self._used) if used + padded <= self._shape.length), None)
        if row is None or not self._room_for(document.seen):
            return False
        start = self._used[row]
        count = len(document.ids)
        part = slice(start, start + count)
        self._tokens[row, part] = document.ids
        self._document[row, start : start + padded] = self._count[row]
        self._position[row, start : start + padded] = numpy.arange(padded)
        self._weights[row, start : start + count - 1] = document.weights[1:]
        for one in document.seen:
            self._look(one, row, start)
        self.places.append((row, start))
        self._used[row] += padded
        self._count[row] += 1
        return True

    def batch(self) -> Batch:
        """The batch as it is now."""
        for row, used in enumerate(self._used):
            self._position[row, used:] = numpy.arange(self._shape.length - used)
        parts = (self._tokens, self._document, self._position, self._weights, self._media)
        seen = (self._patches, self._frame, self._place)
        return Batch(*(torch.from_numpy(part) for part in (*parts, *seen)))

    def _room_for(self, seen: list[Seen]) -> bool:
        filled = list(self._filled)
        for one in seen:
            size = one.grid[1] * one.grid[2]
            for _ in range(one.grid[0]):
                row = next((row for row, used in enumerate(filled) if used + size <= PATCH_ROW), None)
                if row is None:
                    return False
                filled[row] += size
        return True

    def _look(self, one: Seen, row: int, start: int) -> None:
        """Put a picture's patches, or each pair's of a clip, into a row that has room."""
        times, height, width = one.grid
        size, tokens = height * width, height * width // MERGE**2
        for time in range(times):
            at = next(at for at, used in enumerate(self._filled) if used + size <= PATCH_ROW)
            first = self._filled[at]
            part = slice(first, first + size)
            self._patches[at, part] = one.patches[time * size : (time + 1) * size]
            self._frame[at, part] = self._frames
            self._place[at, part] = patch_places(height, width)
            where = [start + position for position in one.positions[time * tokens : (time + 1) * tokens]]
            self._media[row, where] = (at * PATCH_ROW + first) // MERGE**2 + numpy.arange(tokens)
            self._filled[at] += size
            self._frames += 1


class Batches(IterableDataset[Batch]):
    """Training batches of one kind of rows; every worker draws its own."""

    def __init__(self, kind: Rows, shape: Shape, text_files: pathlib.Path, seed: int) -> None:
        self._kind = kind
        self._shape = shape
        self._text_files = text_files
        self._seed = seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        number = worker.id if worker is not None else 0
        rng = random.Random(f"{self._seed} {self._kind} {number}")
        generator = numpy.random.default_rng(rng.getrandbits(64))
        encoder = Encoder(self._text_files)
        make = mixed(self._kind)
        pad_id = encoder.tokenizer.marker_ids["<|endoftext|>"]
        waiting: list[Document] = []
        while True:
            packer = Packer(self._shape, pad_id)
            waiting = [document for document in waiting if not packer.add(document)]
            misses = 0
            while misses < MISSES:
                document = encoder.document(draw(make, rng, "train"))
                if len(document.ids) > self._shape.length or not _small(document):
                    misses += 1
                    continue
                if document.seen and rng.random() < 0.7:
                    document = noisy(document, generator)
                if not packer.add(document):
                    misses += 1
                    waiting.append(document)
            # Those that never find room, as there are too many pictures, are let go.
            waiting = waiting[-4 * MISSES :]
            yield packer.batch()


def _small(document: Document) -> bool:
    return all(one.grid[1] * one.grid[2] <= PATCH_ROW for one in document.seen)


def loader(batches: Batches, workers: int, *, pin: bool) -> Iterator[Batch]:
    """The batches, made by so many processes, or in this one when there are none."""
    return iter(
        DataLoader(
            batches,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=4 if workers else None,
            multiprocessing_context="spawn" if workers else None,
            pin_memory=pin,
        )
    )
