# SPDX-License-Identifier: Apache-2.0
"""Media as rows of prompts, on rank 0: encoded by a thread of its own, so that other requests go on meanwhile.

A piece is a picture, or a pair of a clip's frames. It is encoded when the portion of a prompt that it stands in is to
be read next, and kept for later prompts as long as there is room. What a kept prompt already holds is never encoded.
"""

from __future__ import annotations

import bisect
import collections
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkpair.media.patches import normalise
from sparkpair.model.vision import VisionTower
from sparkpair.request import MediaPart

# Rows that are held at most: the pictures of a whole request and half as many again. It has to be more than the pieces
# that one portion of a prompt can touch.
MAX_ROWS = 24_576

# A picture by its content, or one pair of frames of a clip by its number.
Piece = tuple[bytes, int]

Portion = tuple[Sequence[MediaPart], int, int]


class MediaEncoder:
    """Encodes with `tower`. Its methods are for the engine's thread."""

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower
        self._rows: collections.OrderedDict[Piece, Tensor] = collections.OrderedDict()
        # What each request needs next; those pieces stay.
        self._needed: dict[int, dict[Piece, MediaPart]] = {}
        self._news = threading.Condition()
        self._error: Exception | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="media encoder", daemon=True)

    def start(self) -> None:
        """Begin to encode."""
        self._thread.start()

    def stop(self) -> None:
        """End after the piece that is being encoded."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        self._thread.join()

    def ready(self, owner: int, portion: Portion) -> bool:
        """Whether the rows of a portion that request `owner` reads next are there; if not, they will be.

        A portion is a prompt's media and the positions from the first number up to the second. Raises what made
        encoding fail.
        """
        needed = {piece: part for piece, part, _, _ in _pieces(portion)}
        with self._news:
            if self._error is not None:
                raise self._error
            others = {
                piece: part
                for other, pieces in self._needed.items()
                if other != owner
                for piece, part in pieces.items()
            }
            if others and sum(map(_size, (others | needed).values())) > MAX_ROWS:
                # It has to wait until others have read theirs.
                self._needed.pop(owner, None)
                return False
            self._needed[owner] = needed
            self._news.notify_all()
            return all(piece in self._rows for piece in needed)

    def forget(self, owner: int) -> None:
        """The request needs nothing any more."""
        with self._news:
            self._needed.pop(owner, None)

    def wait(self, timeout_s: float) -> None:
        """Wait until a piece may have become ready."""
        with self._news:
            self._news.wait(timeout_s)

    def rows(self, portions: Sequence[Portion]) -> Tensor | None:
        """The rows, [n, d], of all media of portions that are ready, in order; None when there are none."""
        with self._news:
            found = []
            for portion in portions:
                for piece, _, first, last in _pieces(portion):
                    self._rows.move_to_end(piece)
                    found.append(self._rows[piece][first:last])
        return torch.cat(found) if found else None

    def _work(self) -> None:
        torch.get_num_threads()  # so that this thread learns of it, as the engine's
        while True:
            with self._news:
                while not self._stopping and self._next() is None:
                    self._news.wait()
                found = None if self._stopping else self._next()
            if found is None:
                return
            try:
                rows = self._encode(*found)
            except Exception as error:
                with self._news:
                    self._error = error
                    self._news.notify_all()
                return
            with self._news:
                self._keep(found[0], rows)
                self._news.notify_all()

    def _next(self) -> tuple[Piece, MediaPart] | None:
        """The first missing piece of the request that has waited longest."""
        for pieces in self._needed.values():
            for piece, part in pieces.items():
                if piece not in self._rows:
                    return piece, part
        return None

    def _encode(self, piece: Piece, part: MediaPart) -> Tensor:
        """The rows of one piece, in the host's memory, where they wait for their turn."""
        _, height, width = part.grid
        count = height * width
        patches = part.patches[piece[1] * count : (piece[1] + 1) * count]
        return self._tower.encode(torch.from_numpy(normalise(patches)), (1, height, width)).cpu()

    def _keep(self, piece: Piece, rows: Tensor) -> None:
        """Hold a new piece; others go for it, the least recently read first, but never those that are needed."""
        needed = {key for pieces in self._needed.values() for key in pieces}
        held = rows.shape[0] + sum(other.shape[0] for other in self._rows.values())
        for old in [key for key in self._rows if key not in needed]:
            if held <= MAX_ROWS:
                break
            held -= self._rows.pop(old).shape[0]
        if piece in needed or held <= MAX_ROWS:
            self._rows[piece] = rows


def _size(part: MediaPart) -> int:
    """Rows of one piece of a part."""
    return len(part.positions) // part.grid[0]


def _pieces(portion: Portion) -> list[tuple[Piece, MediaPart, int, int]]:
    """The pieces that a portion touches, each with its part and which of its rows stand in the portion."""
    media, start, stop = portion
    found = []
    for part in media:
        first, last = (bisect.bisect_left(part.positions, edge) for edge in (start, stop))
        size = _size(part)
        for number in range(first // size, -(-last // size)):
            rows = max(first - number * size, 0), min(last - number * size, size)
            found.append(((part.digest, number), part, *rows))
    return found
