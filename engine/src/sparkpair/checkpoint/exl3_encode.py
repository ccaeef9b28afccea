# SPDX-License-Identifier: Apache-2.0
"""Encoding a matrix as EXL3: signs and scales, Hadamard transforms, and a trellis search for every tile.

The search is a two-pass Viterbi: the first pass, on the tile's ring cut open at its middle, finds the state in which
the second pass must begin and end. Each tile is encoded for its own squared error; no calibration data is used. A tile
takes some tens of milliseconds on a CPU core, so this is for tests and for small models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkpair.kernels.reference.exl3 import SYMBOLS, TILE, codebook, hadamard, tile_order
from sparkpair.kernels.weights import Exl3Weight

# The root mean square the encoder gives a tile: the spread that the codebook's values cover best.
CODEBOOK_RMS = 1.24371088

# Tiles that search side by side: on a CPU so few that their costs stay in a core's cache, on a GPU so many that a step
# is worth its launch. There they take 4 GiB, 4 MiB a tile.
CPU_BATCH = 4
GPU_BATCH = 1024


def pack_symbols(symbols: Tensor, bits: int) -> Tensor:
    """Symbols int64 [..., 256] of `bits` bits as the format stores them, int16 [..., 16 * bits]."""
    shifts = torch.arange(bits - 1, -1, -1, device=symbols.device)
    stream = ((symbols.unsqueeze(-1) >> shifts) & 1).reshape(*symbols.shape[:-1], -1, 32)
    words = torch.zeros(stream.shape[:-1], dtype=torch.int64, device=symbols.device)
    for bit in range(32):
        words = (words << 1) | stream[..., bit]
    halves = torch.stack([words & 0xFFFF, words >> 16], dim=-1).flatten(-2)
    return torch.where(halves >= 2**15, halves - 2**16, halves).to(torch.int16)


def search_symbols(values: Tensor, bits: int, batch: int | None = None) -> Tensor:
    """The symbols whose decoded values come near `values` fp32 [n, 256] (in symbol order), int64 [n, 256].

    `batch` tiles search side by side; None: as many as suit the device.
    """
    if batch is None:
        batch = CPU_BATCH if values.device.type == "cpu" else GPU_BATCH
    return torch.cat([_search(values[at : at + batch], bits) for at in range(0, values.shape[0], batch)])


def _search(values: Tensor, bits: int) -> Tensor:
    count = values.shape[0]
    half = SYMBOLS // 2
    free = torch.zeros(count, 2 ** (16 - bits), device=values.device)
    nodes = _walk(torch.cat([values[:, half:], values[:, :half]], dim=1), bits, free, None)
    # After `half` steps of the opened ring stands the node before symbol 0.
    hinge: Tensor = nodes[:, half - 1]
    pinned = torch.full_like(free, torch.inf)
    pinned[torch.arange(count, device=values.device), hinge] = 0.0
    symbols: Tensor = _walk(values, bits, pinned, hinge) & (2**bits - 1)
    return symbols


def _walk(values: Tensor, bits: int, cost: Tensor, end: Tensor | None) -> Tensor:
    """The cheapest path's node after every symbol, int64 [n, 256].

    A node is the last 16 - K bits seen. `cost` [n, nodes] is what starting in each node costs; `end` [n] is the node to
    end in, or None for the cheapest.
    """
    count, nodes = cost.shape
    branches = 2**bits
    # A state is the bits that drop out next (h), then the node it leads to; that node's own low bits are the symbol.
    table = codebook(values.device).float().view(branches, nodes)
    before = []
    for position in range(SYMBOLS):
        before.append(cost)
        error = (table - values[:, position, None, None]).square_()
        error.view(count, branches, nodes // branches, branches).add_(cost.view(count, branches, nodes // branches, 1))
        cost = error.amin(1)
    node = cost.argmin(1) if end is None else end
    rows = torch.arange(count, device=values.device)
    path = []
    for position in reversed(range(SYMBOLS)):
        path.append(node)
        error = (table[:, node].T - values[:, position, None]).square_()
        previous = (node >> bits).unsqueeze(1) + torch.arange(branches, device=values.device) * (nodes // branches)
        drop = (error + before[position].gather(1, previous)).argmin(1)
        node = previous[rows, drop]
    return torch.stack(path[::-1], dim=1)


def encode(matrix: Tensor, bits: int, generator: torch.Generator) -> Exl3Weight:
    """`matrix` fp32 [out, in], both multiples of 128, as an EXL3 linear of `bits` (2 to 8) bits a weight.

    `generator`, of the CPU, draws the signs that spread outliers before the transforms. The result is on the matrix's
    device.
    """
    outputs, inputs = matrix.shape
    svh = _signs(outputs, generator, matrix.device)
    turned = hadamard(matrix.T / svh)
    rms = turned.square().mean(1).sqrt().clamp(min=1e-10)
    suh = (_signs(inputs, generator, matrix.device) * rms / CODEBOOK_RMS).to(torch.float16)
    scaled = turned / suh.float().where(suh != 0, 1.0).unsqueeze(1)
    flat = hadamard(scaled.T).T
    tiles = flat.reshape(inputs // TILE, TILE, outputs // TILE, TILE).transpose(1, 2).flatten(2)
    ordered = torch.empty_like(tiles)
    ordered[..., tile_order(matrix.device)] = tiles
    symbols = search_symbols(ordered.flatten(0, 1), bits)
    trellis = pack_symbols(symbols, bits).view(inputs // TILE, outputs // TILE, -1)
    return Exl3Weight(trellis, suh, svh.to(torch.float16))


def _signs(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return (torch.randint(0, 2, (count,), generator=generator) * 2 - 1).to(device=device, dtype=torch.float32)
