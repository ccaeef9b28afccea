# SPDX-License-Identifier: Apache-2.0
"""A request's media as rows of its prompt, on rank 0: every picture is encoded once, when it is first read."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkpair.media.patches import normalise
from sparkpair.model.vision import VisionTower
from sparkpair.request import MediaPart

# Rows that stay encoded, the least recently used going first: what one request may bring fits.
MAX_ROWS = 49_152


class MediaEncoder:
    """Encodes with `tower` and remembers by content. For one thread."""

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower
        self._rows: collections.OrderedDict[bytes, Tensor] = collections.OrderedDict()

    def rows(self, portions: Sequence[tuple[Sequence[MediaPart], int, int]]) -> Tensor | None:
        """The rows, [n, d], of all media at the prompt positions of `portions`, in order; None when there are none.

        A portion is a prompt's media and the positions from the first up to the second number.
        """
        pieces: list[Tensor] = []
        for media, start, stop in portions:
            for part in media:
                first, last = (bisect.bisect_left(part.positions, edge) for edge in (start, stop))
                if first < last:
                    pieces.append(self._encoded(part)[first:last])
        return torch.cat(pieces) if pieces else None

    def _encoded(self, part: MediaPart) -> Tensor:
        found = self._rows.pop(part.digest, None)
        if found is None:
            found = self._tower.encode(torch.from_numpy(normalise(part.patches)), part.grid)
        self._rows[part.digest] = found
        while len(self._rows) > 1 and sum(rows.shape[0] for rows in self._rows.values()) > MAX_ROWS:
            self._rows.popitem(last=False)
        return found
