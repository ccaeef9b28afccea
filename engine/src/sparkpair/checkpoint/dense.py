# SPDX-License-Identifier: Apache-2.0
"""Quantising dense weights while they load, and reading the block-scaled fp8 of the released checkpoint.

Blocks and groups lie on the whole matrix's columns, not on a rank's: the ranks of any world hold the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkpair.kernels.weights import FP8_COLUMNS, Q4_COLUMNS, Fp8Weight, Q4Weight

# Rows and columns that share one scale in the released fp8 checkpoint.
BLOCK_SCALE = 128

_E4M3_MAX = 448.0
_Q4_LEVELS = 15

# By how much a group's range is drawn in, to spend the levels on the many values and not on the one at the edge.
_Q4_SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72, 0.68)

# Rows quantised at once; bounds the temporaries of a large matrix.
_ROWS = 4096


def widened(part: slice, width: int, unit: int) -> slice:
    """`part` of `width` columns, extended to whole units."""
    return slice(part.start // unit * unit, min(-(-part.stop // unit) * unit, width))


def quantise_fp8(matrix: Tensor, keep: slice) -> Fp8Weight:
    """Columns `keep` of `matrix` [out, in], which begins at a block's edge, as e4m3 with a scale per row and block."""
    blocks = _grouped(matrix, FP8_COLUMNS)
    peak = blocks.abs().amax(-1)
    scales = (peak / _E4M3_MAX).clamp(min=torch.finfo(torch.float32).tiny)
    codes = (blocks / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(1)
    first, last = keep.start // FP8_COLUMNS, -(-keep.stop // FP8_COLUMNS)
    return Fp8Weight(codes[:, keep].contiguous(), scales[:, first:last].contiguous(), keep.start % FP8_COLUMNS)


def quantise_q4(matrix: Tensor, keep: slice) -> Q4Weight:
    """Columns `keep` of `matrix` [out, in], which begins at a group's edge, as 4-bit codes.

    Per group the range with the least squared error is searched among ranges drawn in step by step.
    """
    parts = [_q4_rows(matrix[row : row + _ROWS]) for row in range(0, matrix.shape[0], _ROWS)]
    codes, scales, lows = (torch.cat(found) for found in zip(*parts, strict=True))
    codes = codes.flatten(1)[:, keep]
    columns = codes.shape[1]
    codes = torch.nn.functional.pad(codes, (0, columns % 2))
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    groups = slice(keep.start // Q4_COLUMNS, -(-keep.stop // Q4_COLUMNS))
    return Q4Weight(
        packed.contiguous(),
        scales[:, groups].contiguous(),
        lows[:, groups].contiguous(),
        keep.start % Q4_COLUMNS,
        columns,
    )


def _q4_rows(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes uint8 [out, groups, 64], scales and lows bf16 [out, groups]."""
    groups = _grouped(matrix, Q4_COLUMNS)
    # What fills up a short last group must not weigh in the search.
    real = (torch.arange(groups[0].numel(), device=matrix.device) < matrix.shape[1]).view(groups.shape[1:])
    least, most = groups.amin(-1), groups.amax(-1)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    best_error = torch.full_like(least, torch.inf)
    for shrink in _Q4_SHRINKS:
        low = (least * shrink).to(torch.bfloat16)
        scale = ((most - least) * shrink / _Q4_LEVELS).to(torch.bfloat16)
        step = scale.float().unsqueeze(-1)
        above = (groups - low.float().unsqueeze(-1)) / step.where(step > 0, 1.0)
        codes = above.round().clamp(0, _Q4_LEVELS)
        error = (low.float().unsqueeze(-1) + codes * step - groups).square().mul(real).sum(-1)
        found = (codes.to(torch.uint8), scale, low)
        better = error < best_error
        best = found if best is None else _choose(better, found, best)
        best_error = torch.where(better, error, best_error)
    assert best is not None
    return best


def _choose(
    better: Tensor, found: tuple[Tensor, Tensor, Tensor], best: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.where(better.unsqueeze(-1), found[0], best[0]),
        torch.where(better, found[1], best[1]),
        torch.where(better, found[2], best[2]),
    )


def _grouped(matrix: Tensor, width: int) -> Tensor:
    """fp32 [out, groups, width]; a last group that is short repeats its last column, which widens no range."""
    missing = -matrix.shape[1] % width
    wide = matrix.float()
    if missing:
        wide = torch.cat([wide, wide[:, -1:].expand(-1, missing)], dim=1)
    return wide.view(wide.shape[0], -1, width)


def fp8_bytes(rows: int, keep: slice) -> int:
    """Bytes of an Fp8Weight of `rows` rows that keeps columns `keep` of the whole matrix."""
    blocks: int = -(-keep.stop // FP8_COLUMNS) - keep.start // FP8_COLUMNS
    columns: int = keep.stop - keep.start
    return rows * (columns + 4 * blocks)


def q4_bytes(rows: int, keep: slice) -> int:
    """Bytes of a Q4Weight of `rows` rows that keeps columns `keep` of the whole matrix."""
    groups: int = -(-keep.stop // Q4_COLUMNS) - keep.start // Q4_COLUMNS
    columns: int = keep.stop - keep.start
    return rows * (-(-columns // 2) + 4 * groups)


def scale_part(part: slice) -> slice:
    """The block scales that cover `part` of a matrix's rows or columns."""
    return slice(part.start // BLOCK_SCALE, -(-part.stop // BLOCK_SCALE))


def unscale_blocks(codes: Tensor, scales: Tensor, rows: int, columns: int) -> Tensor:
    """codes * the scale of their 128 x 128 block, fp32; codes[0, 0] is element (`rows`, `columns`) of the matrix.

    `scales` holds the blocks that `codes` touches.
    """
    top, left = rows % BLOCK_SCALE, columns % BLOCK_SCALE
    spread = scales.float().repeat_interleave(BLOCK_SCALE, dim=0)[top : top + codes.shape[0]]
    return codes.float() * spread.repeat_interleave(BLOCK_SCALE, dim=1)[:, left : left + codes.shape[1]]
