# SPDX-License-Identifier: Apache-2.0
"""Which part of each tensor a rank holds: the tensor-parallel rules, by tensor name.

Heads, expert and feed-forward widths, and vocabulary rows are cut in whole units; remainders go to the lowest ranks.
Everything not named here is held whole by every rank.
"""

from __future__ import annotations

import re
from typing import Literal

from sparkpair.errors import UserError
from sparkpair.model.config import TextConfig

Unit = Literal["kda_head", "dsa_head", "column", "row"]

# Widths are cut at multiples of this where they have enough of them: a 128-column block is one Hadamard block of a
# quantised expert, which cannot be cut without encoding it anew.
BLOCK = 128

_KDA = {
    "q_proj.weight": 0, "k_proj.weight": 0, "v_proj.weight": 0,
    "q_conv1d.weight": 0, "k_conv1d.weight": 0, "v_conv1d.weight": 0,
    "f_b_proj.weight": 0, "g_b_proj.weight": 0, "b_proj.weight": 0, "A_log": 0, "dt_bias": 0,
    "o_proj.weight": 1,
}  # fmt: skip
_DSA = {"q_b_proj.weight": 0, "kv_b_proj.weight": 0, "o_proj.weight": 1}
_MLP = {"gate_proj.weight": 0, "up_proj.weight": 0, "down_proj.weight": 1}

# The tensors of an EXL3 linear: axis, and how many weights one step along it covers.
_EXL3 = {
    "gate_proj.trellis": (1, 16), "up_proj.trellis": (1, 16), "gate_proj.svh": (0, 1), "up_proj.svh": (0, 1),
    "down_proj.trellis": (0, 16), "down_proj.suh": (0, 1),
}  # fmt: skip

_LAYER = re.compile(r"\.layers\.(\d+)\.(self_attn|mlp)\.(?:experts\.\d+\.|shared_experts\.)?(.+)$")


def share(total: int, world: int, rank: int) -> slice:
    """The units of `total` that `rank` of `world` holds; the lowest ranks hold one more where it does not divide."""
    each, extra = divmod(total, world)
    start = rank * each + min(rank, extra)
    return slice(start, start + each + (rank < extra))


def cut_width(width: int, world: int, rank: int) -> slice:
    """The columns of a feed-forward width that a rank holds: whole blocks of 128 where every rank gets one."""
    unit = BLOCK if width % BLOCK == 0 and width // BLOCK >= world else 1
    units = share(width // unit, world, rank)
    return slice(units.start * unit, units.stop * unit)


def _cut_blocks(width: int, world: int, rank: int) -> slice:
    """The same for an EXL3 expert, which cannot be cut inside a block. Raises UserError when it has too few."""
    blocks = width // BLOCK
    if blocks < world:
        raise UserError(
            f"--tp {world}: an EXL3 expert is {width} columns wide and is cut in whole blocks of {BLOCK}, "
            f"so at most {blocks} ranks can share it"
        )
    return cut_width(width, world, rank)


def rank_part(config: TextConfig, name: str, shape: tuple[int, ...], world: int, rank: int) -> tuple[int, slice] | None:
    """Axis and slice of tensor `name` that `rank` holds, or None when it holds all of it."""
    if world == 1:
        return None
    if name == "lm_head.weight":
        return 0, share(shape[0], world, rank)
    found = _LAYER.search(name)
    if found is None:
        return None
    layer, block, leaf = int(found[1]), found[2], found[3]
    if block == "mlp" and leaf in _EXL3:
        axis_of_part, step = _EXL3[leaf]
        part = _cut_blocks(shape[axis_of_part] * step, world, rank)
        return axis_of_part, slice(part.start // step, part.stop // step)
    if block == "mlp":
        axis = _MLP.get(leaf)
        return None if axis is None else (axis, cut_width(shape[axis], world, rank))
    is_kda = layer < config.num_layers and config.attention[layer] == "kda"
    axis = (_KDA if is_kda else _DSA).get(leaf)
    if axis is None:
        return None
    heads = config.linear_heads if is_kda else config.num_heads
    width = shape[axis] // heads
    part = share(heads, world, rank)
    return axis, slice(part.start * width, part.stop * width)


def check_world(config: TextConfig, world: int) -> None:
    """Raise UserError when the model cannot be cut for `world` ranks, naming what there is too little of."""
    limits = {
        "attention heads": config.num_heads,
        "linear-attention heads": config.linear_heads,
        "columns of an expert": config.moe_intermediate_size,
        "vocabulary rows": config.vocab_size,
    }
    for what, count in limits.items():
        if count < world:
            raise UserError(f"--tp {world}: the model has only {count} {what}, so it cannot be cut for {world} ranks")
