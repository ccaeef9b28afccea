# SPDX-License-Identifier: Apache-2.0
"""The forms in which a linear map's weight may be held: a plain matrix, or one that a kernel de-quantises.

Every form has `shape` (out, in) and `nbytes`. `kernels.linear` takes any of them, so the model does not know which form
a checkpoint or a setting chose.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import torch
from torch import Tensor

# Columns that share one scale of an fp8 row, and one range of a 4-bit row.
FP8_COLUMNS = 128
Q4_COLUMNS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Exl3Weight:
    """An EXL3 linear: `trellis` int16 [in/16, out/16, 16 K] at K bits a weight, `suh` fp16 [in], `svh` fp16 [out].

    In and out are multiples of 128. The effective matrix is diag(suh) H W H diag(svh), W the decoded trellis [in, out]
    and H a Hadamard transform of every 128 values.
    """

    trellis: Tensor
    suh: Tensor
    svh: Tensor

    @property
    def bits(self) -> int:
        """Bits a weight."""
        return self.trellis.shape[2] // 16

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.svh.shape[0], self.suh.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.trellis.nbytes + self.suh.nbytes + self.svh.nbytes


@dataclasses.dataclass(frozen=True, slots=True)
class Fp8Weight:
    """Rows of e4m3 codes: `codes` [out, in], `scales` fp32 [out, blocks], one for every 128 columns.

    Column 0 is the `offset`-th of its block: a cut of a wider matrix keeps that matrix's blocks.
    """

    codes: Tensor
    scales: Tensor
    offset: int

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.codes.nbytes + self.scales.nbytes


@dataclasses.dataclass(frozen=True, slots=True)
class Q4Weight:
    """Rows of 4-bit codes: `codes` uint8 [out, ceil(in/2)], the even column in the low half of a byte.

    `scales` and `lows` are bf16 [out, groups], one pair for every 64 columns: weight = low + code * scale. Column 0 is
    the `offset`-th of its group; `columns` is the width in.
    """

    codes: Tensor
    scales: Tensor
    lows: Tensor
    offset: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.codes.shape[0], self.columns

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.codes.nbytes + self.scales.nbytes + self.lows.nbytes


Weight = Tensor | Exl3Weight | Fp8Weight | Q4Weight


def stack_rows(weights: list[Weight]) -> Weight:
    """One weight whose rows are those of `weights` in order; all of one form and width, plain, fp8 or 4-bit."""
    first = weights[0]
    if isinstance(first, Fp8Weight):
        eights = cast(list[Fp8Weight], weights)
        return Fp8Weight(
            torch.cat([weight.codes for weight in eights]),
            torch.cat([weight.scales for weight in eights]),
            first.offset,
        )
    if isinstance(first, Q4Weight):
        fours = cast(list[Q4Weight], weights)
        return Q4Weight(
            torch.cat([weight.codes for weight in fours]),
            torch.cat([weight.scales for weight in fours]),
            torch.cat([weight.lows for weight in fours]),
            first.offset,
            first.columns,
        )
    return torch.cat(cast(list[Tensor], weights))
