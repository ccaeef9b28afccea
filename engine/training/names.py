# SPDX-License-Identifier: Apache-2.0
"""The twin's parameters under the names of a checkpoint's tensors, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

# The stacked matrices of a layer's routed experts.
STACKED = re.compile(r"(.*\.mlp\.experts)\.(gate_proj|up_proj|down_proj)")


def checkpoint_tensors(twin: nn.Module, *, frozen: bool = True) -> dict[str, Tensor]:
    """Every tensor by its name in a checkpoint, fp32; parts of the twin's own, not copies.

    Without `frozen`, parameters that are not trained are left out.
    """
    left_out = set() if frozen else {name for name, one in twin.named_parameters() if not one.requires_grad}
    found: dict[str, Tensor] = {}
    for name, tensor in twin.state_dict().items():
        if name in left_out:
            continue
        stacked = STACKED.fullmatch(name)
        if stacked is None:
            found[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            found[f"{stacked[1]}.{expert}.{stacked[2]}.weight"] = matrix
    return found


@torch.no_grad()
def load_tensors(twin: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Fill the twin. Raises KeyError for a tensor that is missing, RuntimeError for one of another shape."""
    for name, own in checkpoint_tensors(twin).items():
        own.copy_(tensors[name].view(own.shape))
