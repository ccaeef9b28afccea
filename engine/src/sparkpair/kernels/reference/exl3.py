# SPDX-License-Identifier: Apache-2.0
"""EXL3 linears: a trellis-coded matrix between two Hadamard transforms, decoded bit by bit as the format defines it.

A tile of 16 x 16 weights is a ring of 256 K-bit symbols. The value at a symbol comes from the 16 bits that end with it,
so neighbouring weights share bits; the ring closes on itself. K is 2 to 8.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sparkpair.kernels.reference.tiles import tiled_linear
from sparkpair.kernels.weights import Exl3Weight

TILE = 16
SYMBOLS = TILE * TILE
HADAMARD = 128

# The multiplier of the `mcg` codebook; a checkpoint's `mcg` tensor holds it as a signed 32-bit number.
MCG = 0xCBAC1FED

_MASK, _FLIP = 0x8FFF8FFF, 0x3B603B60


@functools.cache
def codebook(device: torch.device) -> Tensor:
    """The value of every 16-bit state, fp16 [65536]: the two halves of a scrambled word, added as fp16 numbers."""
    scrambled = ((torch.arange(2**16, device=device) * MCG) & _MASK) ^ _FLIP
    halves = torch.stack([scrambled & 0xFFFF, (scrambled >> 16) & 0xFFFF])
    signed = torch.where(halves >= 2**15, halves - 2**16, halves).to(torch.int16)
    values = signed.view(torch.float16)
    return values[0] + values[1]


@functools.cache
def tile_order(device: torch.device) -> Tensor:
    """For every place of a tile, row-major, the symbol whose value lands there, int64 [256]."""
    place = torch.arange(SYMBOLS, device=device)
    row, column = place // TILE, place % TILE
    return (column % 8 * 4 + row % 8 // 2) * 8 + row % 2 + 2 * (row // 8) + 4 * (column // 8)


def tile_states(trellis: Tensor) -> Tensor:
    """The 16-bit state of every symbol, int64 [..., 256]; `trellis` int16 [..., 16 K].

    The bit stream runs through 32-bit little-endian words, most significant bit first.
    """
    bits = trellis.shape[-1] // TILE
    halves = trellis.to(torch.int64) & 0xFFFF
    words = halves[..., 0::2] | (halves[..., 1::2] << 16)
    start = ((torch.arange(SYMBOLS, device=trellis.device) + 1) * bits - 16) % (SYMBOLS * bits)
    word, offset = start // 32, start % 32
    # The window of 16 bits lies in this word and the next; an arithmetic shift is harmless below the mask.
    pair = (words[..., word] << 32) | words[..., (word + 1) % words.shape[-1]]
    return (pair >> (48 - offset)) & 0xFFFF


def decode_trellis(trellis: Tensor) -> Tensor:
    """The matrix inside the transforms, exact fp16 values [in, out]; `trellis` int16 [in/16, out/16, 16 K]."""
    rows, columns = trellis.shape[:2]
    values = codebook(trellis.device)[tile_states(trellis)][..., tile_order(trellis.device)]
    return values.view(rows, columns, TILE, TILE).transpose(1, 2).reshape(rows * TILE, columns * TILE)


def hadamard(x: Tensor) -> Tensor:
    """The transform of every 128 values along the last axis, fp32, x's shape. Its own inverse up to rounding.

    Made of sums and differences alone, so that a row's bits do not depend on the rows beside it.
    """
    values = x.float().contiguous().view(-1, HADAMARD)
    reach = 1
    while reach < HADAMARD:
        pairs = values.view(-1, 2, reach)
        left, right = pairs[:, 0], pairs[:, 1]
        values = torch.stack([left + right, left - right], dim=1)
        reach *= 2
    scaled: Tensor = (values * HADAMARD**-0.5).view(x.shape)
    return scaled


def exl3_effective(weight: Exl3Weight) -> Tensor:
    """The matrix that the whole linear amounts to, fp32 [out, in]."""
    inner = hadamard(decode_trellis(weight.trellis)) * weight.svh.float()
    return hadamard(inner.T) * weight.suh.float()


def exl3_linear(x: Tensor, weight: Exl3Weight) -> Tensor:
    """`x` [T, in] -> [T, out] in x's dtype, in fp32 between: the packed form, decoded anew at every use."""
    turned = hadamard(x.float() * weight.suh.float())
    mixed = tiled_linear(turned, decode_trellis(weight.trellis).float().T.contiguous())
    return (hadamard(mixed) * weight.svh.float()).to(x.dtype)
