# SPDX-License-Identifier: Apache-2.0
"""Rows of pictures in the batch of a forward pass: rank 0 has them, every rank needs them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sparkpair.comm.group import Group


@dataclasses.dataclass(frozen=True, slots=True)
class MediaRows:
    """`where`: batch rows that stand for media, alike on every rank; `rows` [len(where), d] on rank 0, else None."""

    where: list[int]
    rows: Tensor | None


def place_media(embedded: Tensor, media: MediaRows, group: Group) -> None:
    """Put the media rows into `embedded` [T, d] in place; every rank of the group calls this together.

    The rows travel in the exchange that adds partial sums: the other ranks send zeros, so the sum is rank 0's rows.
    """
    part = torch.zeros(len(media.where), embedded.shape[1], dtype=torch.float32, device=embedded.device)
    if media.rows is not None:
        part.copy_(media.rows)
    rows = torch.tensor(media.where, dtype=torch.int64, device=embedded.device)
    embedded[rows] = group.sum_partials(part).to(embedded.dtype)
