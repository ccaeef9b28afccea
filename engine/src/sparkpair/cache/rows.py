# SPDX-License-Identifier: Apache-2.0
"""Growing lists of rows that can share their beginning: a kept prompt and the conversation that continues it."""

from __future__ import annotations

import torch
from torch import Tensor

# Buffers grow in steps of this many rows, so that growing is rare and the waste bounded.
GROWTH = 2048


class _Buffer:
    """Memory for rows, and how many of them somebody needs. Rows below `used` are never written again."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.used = 0


class Rows:
    """The first `length` rows of a buffer, [length, width].

    Several lists may share a buffer. The one that ends where the buffer's used rows end appends in place; another that
    appends takes a copy of its own first. Forgetting rows with `truncate` is for the only user of the rows behind.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = _Buffer(torch.empty(0, width, dtype=dtype, device=device))
        self.length = 0

    def append(self, rows: Tensor) -> None:
        """Add `rows` [n, width] at the end."""
        needed = self.length + rows.shape[0]
        if needed > self._buffer.tensor.shape[0] or self.length != self._buffer.used:
            self._own(needed)
        self._buffer.tensor[self.length : needed] = rows
        self._buffer.used = self.length = needed

    def _own(self, needed: int) -> None:
        capacity = -(-needed // GROWTH) * GROWTH
        buffer = _Buffer(self._buffer.tensor.new_empty(capacity, self._buffer.tensor.shape[1]))
        buffer.tensor[: self.length] = self.rows
        self._buffer = buffer

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on."""
        self._buffer.used = self.length = length

    @property
    def rows(self) -> Tensor:
        """The rows so far, [length, width]; a view."""
        return self._buffer.tensor[: self.length]

    @property
    def capacity(self) -> int:
        """Rows that memory is held for."""
        return self._buffer.tensor.shape[0]

    def share(self) -> Rows:
        """The same rows as another list."""
        other = Rows.__new__(Rows)
        other._buffer = self._buffer
        other.length = self.length
        return other
