# SPDX-License-Identifier: Apache-2.0
"""EXL3 linears in a checkpoint: the tensors that stand for one `weight`, what they must be, and how they are cut.

A projection P has `P.trellis`, `P.suh`, `P.svh` and `P.mcg`. A cut at a multiple of 128 never crosses a Hadamard block,
so a rank takes its slice of the stored tensors and nothing is encoded anew.
"""

from __future__ import annotations

import re

from sparkpair.checkpoint.safetensors import Checkpoint, TensorEntry
from sparkpair.errors import UserError
from sparkpair.kernels.reference.exl3 import HADAMARD, MCG, TILE

MCG_SIGNED = MCG - 2**32

_SUFFIX = re.compile(r"\.(trellis|suh|svh|mcg)$")

# Forms of the format that other files use and this engine has no decoder for.
_FOREIGN = ("mul1", "su", "sv", "bias")


def is_exl3_part(name: str) -> bool:
    """Whether `name` is one of the tensors of an EXL3 linear."""
    return _SUFFIX.search(name) is not None


def decoded_elements(trellis_elements: int, entry: TensorEntry) -> int:
    """Weights that `trellis_elements` int16 of the trellis `entry` decode to."""
    return trellis_elements * TILE * TILE // entry.shape[2]


def check_exl3(checkpoint: Checkpoint, prefix: str) -> None:
    """Raise UserError naming the tensor when the EXL3 linear `prefix` is not one this engine can decode."""
    for foreign in _FOREIGN:
        if f"{prefix}.{foreign}" in checkpoint:
            raise UserError(f"{checkpoint.directory}: {prefix}.{foreign}: only the mcg form of EXL3 can be decoded")
    trellis, suh, svh = (checkpoint.entry(f"{prefix}.{leaf}") for leaf in ("trellis", "suh", "svh"))
    inputs, outputs = suh.shape[0], svh.shape[0]
    bits = trellis.shape[2] // TILE if len(trellis.shape) == 3 else 0
    wanted = (inputs // TILE, outputs // TILE, bits * TILE)
    if not 2 <= bits <= 8 or trellis.shape != wanted or inputs % HADAMARD or outputs % HADAMARD:
        raise UserError(
            f"{checkpoint.directory}: {prefix}.trellis has shape {list(trellis.shape)} beside {inputs} inputs and "
            f"{outputs} outputs; expected [in/16, out/16, 16 K] with K from 2 to 8 and multiples of {HADAMARD}"
        )
    multiplier = int(checkpoint.read(f"{prefix}.mcg"))
    if multiplier != MCG_SIGNED:
        raise UserError(f"{checkpoint.directory}: {prefix}.mcg is {multiplier}, expected {MCG_SIGNED}")
