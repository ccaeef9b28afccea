# SPDX-License-Identifier: Apache-2.0
"""One rank's pool: the rows of all sequences for every token, layer by layer, in memory that is taken once.

A layer has a latent row for every token and a pooled index key for every `index_kpool` of them. Sequences know their
extent only as a `Place`, which all that share it share too: when the extent moves, the place says so to all of them.
Rows are stored as they are computed, as bf16, or as 8-bit floats with a scale of their own.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.cache.forms import RowForm
from sparkpair.model.config import TextConfig

# Rows that are copied in one piece.
PIECE = 4096


def row_bytes(width: int, form: RowForm) -> int:
    """Bytes of one stored row of `width` values."""
    return {"fp32": 4 * width, "bf16": 2 * width, "fp8": width + kernels.FP8_ROW_OVERHEAD}[form]


def token_bytes(config: TextConfig, form: RowForm, layers: int) -> int:
    """Bytes of one token's rows in `layers` layers, rounded up."""
    pooled = -(-row_bytes(config.index_head_dim, form) // config.index_kpool)
    return layers * (row_bytes(config.kv_lora_rank, form) + pooled)


class Plane:
    """Rows of one kind of one layer, [rows, width]."""

    def __init__(self, rows: int, width: int, form: RowForm, dtype: torch.dtype, device: torch.device) -> None:
        self.width = width
        self._form = form
        self._dtype = dtype
        stored = width + kernels.FP8_ROW_OVERHEAD if form == "fp8" else width
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.uint8}[form]
        self._rows = torch.empty(rows, stored, dtype=kind, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of its memory."""
        return self._rows.nbytes

    def write(self, at: int, rows: Tensor) -> None:
        """Store `rows` [n, width] from row `at` on."""
        self._rows[at : at + rows.shape[0]] = kernels.encode_fp8_rows(rows) if self._form == "fp8" else rows

    def read(self, where: slice | Tensor) -> Tensor:
        """The rows of a slice [n, width], or at indices of any shape [..., width]; a view where that is possible."""
        rows = self._rows[where]
        return kernels.decode_fp8_rows(rows, self._dtype) if self._form == "fp8" else rows.to(self._dtype)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy `count` rows to another place, which may overlap theirs."""
        # No piece is longer than the way it goes, so it never overlaps its own place.
        step = min(PIECE, abs(target - source))
        starts = range(0, count, step) if step else range(0)
        for start in starts if target < source else reversed(starts):
            rows = min(step, count - start)
            self._rows[target + start : target + start + rows] = self._rows[source + start : source + start + rows]


@dataclasses.dataclass(slots=True)
class Place:
    """Where the rows of a sequence stand: `size` tokens from `base` on."""

    base: int
    size: int


class PlacedRows:
    """The first `length` rows of a sequence in a plane that has a row for every `stride` tokens."""

    def __init__(self, plane: Plane, place: Place, stride: int, length: int = 0) -> None:
        self._plane = plane
        self._place = place
        self._stride = stride
        self.length = length

    @property
    def _base(self) -> int:
        return self._place.base // self._stride

    def append(self, rows: Tensor) -> None:
        """Add `rows` [n, width] at the end. Raises RuntimeError rather than write into another sequence's rows."""
        end = self.length + rows.shape[0]
        if end * self._stride > self._place.size:
            raise RuntimeError(f"{end} rows of {self._stride} tokens do not fit into an extent of {self._place.size}")
        self._plane.write(self._base + self.length, rows)
        self.length = end

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on."""
        self.length = length

    def first(self, count: int) -> Tensor:
        """The first `count` rows, [count, width]."""
        return self._plane.read(slice(self._base, self._base + count))

    def at(self, indices: Tensor) -> Tensor:
        """The rows at `indices`, [..., width]."""
        return self._plane.read(indices + self._base)

    def keep(self, token: int) -> KeptRows:
        """For a kept state: a copy of the rows from that of `token` on. Those before stay where they are."""
        first = min(token // self._stride, self.length)
        last = self._plane.read(slice(self._base + first, self._base + self.length)).clone()
        return KeptRows(self._plane, self._stride, first, last)


@dataclasses.dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows of a kept state in a plane: the first `count` stand in an extent, `last` are those behind them."""

    plane: Plane
    stride: int
    count: int
    last: Tensor

    def resume(self, place: Place) -> PlacedRows:
        """All of the rows in `place`, which has the first."""
        rows = PlacedRows(self.plane, place, self.stride, self.count)
        rows.append(self.last)
        return rows


class RowPool:
    """The planes of one rank: for every DSA layer, and for those that a drafter adds behind them."""

    def __init__(
        self,
        config: TextConfig,
        tokens: int,
        *,
        form: RowForm,
        dtype: torch.dtype,
        device: torch.device,
        drafter_layers: int = 0,
    ) -> None:
        self.tokens = tokens
        self.device = device
        self._kpool = config.index_kpool
        layers = [layer for layer, kind in enumerate(config.attention) if kind == "dsa"]
        layers += range(config.num_layers, config.num_layers + drafter_layers)
        self._latents = {layer: Plane(tokens, config.kv_lora_rank, form, dtype, device) for layer in layers}
        pools = tokens // self._kpool
        self._pooled = {layer: Plane(pools, config.index_head_dim, form, dtype, device) for layer in layers}

    def rows(self, layer: int, place: Place) -> tuple[PlacedRows, PlacedRows]:
        """The empty latent rows and pooled keys of a layer for a sequence in `place`."""
        return PlacedRows(self._latents[layer], place, 1), PlacedRows(self._pooled[layer], place, self._kpool)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the rows of `tokens` tokens from one base to another; the two may overlap."""
        for plane in self._latents.values():
            plane.copy(source, target, tokens)
        for plane in self._pooled.values():
            plane.copy(source // self._kpool, target // self._kpool, -(-tokens // self._kpool))
