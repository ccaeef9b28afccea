# SPDX-License-Identifier: Apache-2.0
"""Routed experts as EXL3: `experts.safetensors` in a directory of training, and the matrices they decode to.

A directory that has the file is a finished one: its experts are those, and the other weights are trained around them.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

import torch
from safetensors.torch import load_file
from sparkpair.checkpoint.exl3 import MCG_SIGNED
from sparkpair.kernels import exl3_effective
from sparkpair.kernels.weights import Exl3Weight
from torch import Tensor, nn

from training.twin.moe import Experts

EXPERTS = "experts.safetensors"

# The name of an expert's matrix in a checkpoint, its weight's suffix apart.
MATRIX = re.compile(r"(.*\.mlp\.experts\.\d+\.\w+)\.weight")

_TRELLIS = ".trellis"
_PARTS = ("trellis", "suh", "svh")


def encoded(directory: pathlib.Path) -> bool:
    """Whether the experts of a directory are EXL3."""
    return (directory / EXPERTS).exists()


def read(directory: pathlib.Path) -> dict[str, Tensor]:
    """The tensors by their names in a checkpoint: trellis, suh, svh and mcg of every matrix."""
    tensors: dict[str, Tensor] = load_file(str(directory / EXPERTS))
    return tensors


def tensors_of(prefix: str, weight: Exl3Weight) -> dict[str, Tensor]:
    """What a checkpoint holds of an EXL3 linear."""
    tensors = {f"{prefix}.{leaf}": getattr(weight, leaf).cpu().contiguous() for leaf in _PARTS}
    return tensors | {f"{prefix}.mcg": torch.tensor(MCG_SIGNED, dtype=torch.int32)}


def decoded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices [out, in] fp32 that the engine computes with, by the names of plain weights."""
    prefixes = [name.removesuffix(_TRELLIS) for name in tensors if name.endswith(_TRELLIS)]
    return {
        f"{prefix}.weight": exl3_effective(Exl3Weight(*(tensors[f"{prefix}.{leaf}"] for leaf in _PARTS)))
        for prefix in prefixes
    }


def freeze(twin: nn.Module) -> None:
    """Let the experts stay as they are while the rest is trained."""
    for module in twin.modules():
        if isinstance(module, Experts):
            module.requires_grad_(False)
