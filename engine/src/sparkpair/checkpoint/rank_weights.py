# SPDX-License-Identifier: Apache-2.0
"""The weights of one rank: reads only the rank's part of each tensor and brings it to the compute dtype."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import rank_part
from sparkpair.model.config import TextConfig

# Tensors that stay fp32 whatever the compute dtype: small, and the model is sensitive to their rounding.
_FP32 = re.compile(
    r"(e_score_correction_bias|mlp\.gate\.weight|conv1d\.weight|dt_bias|A_log|hc_(attn|ffn)_(base|scale))$"
)

Progress = Callable[[int], None]


class RankWeights:
    """Reads tensors for `rank` of `world` onto `device`; `progress` gets the bytes read so far after each tensor."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: TextConfig,
        *,
        world: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.world = world
        self.rank = rank
        self.dtype = dtype
        self.device = device
        self.bytes_read = 0
        self._progress = progress

    def take(self, name: str) -> torch.Tensor:
        """This rank's part of tensor `name`. Raises UserError when the checkpoint lacks it."""
        part = rank_part(self.config, name, self.checkpoint.entry(name).shape, self.world, self.rank)
        tensor = self.checkpoint.read(name) if part is None else self.checkpoint.read(name, *part)
        self.bytes_read += tensor.nbytes
        dtype = torch.float32 if _FP32.search(name) else self.dtype
        placed = tensor.to(device=self.device, dtype=dtype, copy=True).contiguous()
        if self._progress is not None:
            self._progress(self.bytes_read)
        return placed


def rank_bytes(
    checkpoint: Checkpoint, config: TextConfig, *, world: int, rank: int, dtype: torch.dtype
) -> tuple[int, int]:
    """Bytes rank `rank` reads from disk and bytes it then holds in memory, from the headers alone.

    Counts the backbone: the MTP layer and the vision tower are not loaded by this engine yet.
    """
    stored = held = 0
    for name, entry in checkpoint.entries.items():
        if not is_backbone(config, name):
            continue
        part = rank_part(config, name, entry.shape, world, rank)
        elements = 1
        for axis, width in enumerate(entry.shape):
            elements *= part[1].stop - part[1].start if part is not None and axis == part[0] else width
        whole = 1
        for width in entry.shape:
            whole *= width
        stored += entry.nbytes * elements // max(whole, 1)
        held += elements * (4 if _FP32.search(name) else dtype.itemsize)
    return stored, held


def is_backbone(config: TextConfig, name: str) -> bool:
    """Whether the tensor belongs to the text model's backbone (not the MTP layer, not the vision tower)."""
    if name == "lm_head.weight":
        return True
    if not name.startswith("model.language_model."):
        return False
    found = re.match(r"model\.language_model\.layers\.(\d+)\.", name)
    return found is None or int(found[1]) < config.num_layers
