# SPDX-License-Identifier: Apache-2.0
"""What the twin is given at a time: rows of packed documents, and rows of packed patches."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(slots=True)
class Batch:
    """Documents packed into rows; each begins at a multiple of the chunk of 64, and what fills it up belongs to it.

    `tokens`, `document` (numbered within a row), `position` (within the document) and `media` (row of the pictures'
    rows that stands there, or -1) are int64 [B, T]; `weights` fp32 [B, T] says how much it counts that the next token
    is foretold. `patches` uint8 [R, L, values] belong to the pictures numbered `frame` [R, L], -1 for none, at
    row and column `place` [R, L, 2].
    """

    tokens: Tensor
    document: Tensor
    position: Tensor
    weights: Tensor
    media: Tensor
    patches: Tensor
    frame: Tensor
    place: Tensor

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        return Batch(**{name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """All parts by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def copy_from(self, other: Batch) -> None:
        """Write another batch of the same shapes into the tensors of this one."""
        for name, tensor in self.tensors().items():
            tensor.copy_(getattr(other, name), non_blocking=True)


def text_batch(ids: list[int], length: int) -> Batch:
    """One document of text alone in a row of `length` tokens; every token counts."""
    tokens = torch.zeros(1, length, dtype=torch.int64)
    tokens[0, : len(ids)] = torch.tensor(ids)
    weights = torch.zeros(1, length)
    weights[0, : len(ids) - 1] = 1.0
    where = torch.arange(length).unsqueeze(0)
    nothing = torch.zeros(1, 0, dtype=torch.int64)
    return Batch(
        tokens=tokens,
        document=torch.zeros_like(tokens),
        position=where,
        weights=weights,
        media=torch.full_like(tokens, -1),
        patches=torch.zeros(1, 0, 1176, dtype=torch.uint8),
        frame=nothing,
        place=nothing.unsqueeze(-1).expand(1, 0, 2),
    )
