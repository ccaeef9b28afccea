# SPDX-License-Identifier: Apache-2.0
"""The newest rows of a growing list, in memory of one size: what a drafter with a window looks at."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkpair.grid import GRID

# Rows that are appended before older ones have to be moved out of the way.
SLACK = 128


def tail_rows(most: int) -> int:
    """Rows of memory for the newest `most`."""
    return kept_rows(most) + SLACK


def kept_rows(most: int) -> int:
    """Rows that a copy of the newest `most` needs at most, in whole blocks."""
    return -(-most // GRID) * GRID


class Tail:
    """At most the newest `most` rows, [n, width]."""

    def __init__(self, most: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._most = most
        self._buffer = torch.empty(tail_rows(most), width, dtype=dtype, device=device)
        self._end = 0

    def append(self, rows: Tensor) -> None:
        """Add `rows` [n, width] at the end; the oldest go."""
        rows = rows[-self._most :]
        count = rows.shape[0]
        if self._end + count > self._buffer.shape[0]:
            left = min(self._most - count, self._end)
            older = self._buffer[self._end - left : self._end].clone()
            self._buffer[:left] = older
            self._end = left
        self._buffer[self._end : self._end + count] = rows
        self._end += count

    @property
    def rows(self) -> Tensor:
        """The rows, oldest first; a view until the next `append`."""
        return self._buffer[max(0, self._end - self._most) : self._end]

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return self._buffer.nbytes

    def fresh(self) -> Tail:
        """An empty one of the same form."""
        return Tail(self._most, self._buffer.shape[1], self._buffer.dtype, self._buffer.device)
