# SPDX-License-Identifier: Apache-2.0
"""The checkpoint's vision tower: found before anything is loaded, counted in the estimate, then loaded on rank 0."""

from __future__ import annotations

import torch

from sparkpair.checkpoint.rank_weights import Layout, RankWeights, is_vision, rank_bytes
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.errors import UserError
from sparkpair.media.limits import DECODER_BYTES, DECODERS, FRAME_TOKENS, PREPARED_BYTES
from sparkpair.media.patches import CHANNELS, FRAMES, MERGE, PATCH
from sparkpair.memory import TowerNeed
from sparkpair.model.config import TextConfig
from sparkpair.model.media_encoder import MAX_ROWS, MediaEncoder
from sparkpair.model.vision import VisionTower, workspace_bytes
from sparkpair.model.vision_config import VisionConfig, load_vision_config


class TowerSource:
    """A vision tower that fits the model. Raises UserError when it does not, or reads pictures cut in another way."""

    def __init__(self, checkpoint: Checkpoint, text: TextConfig) -> None:
        self.config: VisionConfig = load_vision_config(checkpoint.directory)
        self._checkpoint = checkpoint
        self._text = text
        config = self.config
        where = f"{checkpoint.directory / 'config.json'}: vision_config"
        for name, found, wanted in (
            ("patch_size", config.patch, PATCH),
            ("temporal_patch_size", config.temporal_patch, FRAMES),
            ("spatial_merge_size", config.merge, MERGE),
            ("in_channels", config.channels, CHANNELS),
            ("out_hidden_size", config.out_hidden_size, text.hidden_size),
        ):
            if found != wanted:
                raise UserError(f"{where}.{name} is {found}; this engine reads {wanted}. Serve it with --no-vision")

    def need(self, dtype: torch.dtype) -> TowerNeed:
        """What it takes of rank 0's memory, with everything that pictures need there."""
        size = rank_bytes(self._checkpoint, self._text, Layout(1, 0, dtype), is_vision)
        patches = FRAME_TOKENS * MERGE**2
        rows = MAX_ROWS * self.config.out_hidden_size * dtype.itemsize
        workspace = workspace_bytes(self.config, patches, dtype.itemsize)
        return TowerNeed(size.stored, size.held, workspace + rows + PREPARED_BYTES + DECODERS * DECODER_BYTES)

    def load(self, weights: RankWeights) -> MediaEncoder:
        """Load it from where the backbone's weights came from."""
        return MediaEncoder(VisionTower(self.config, weights))


def find_tower(checkpoint: Checkpoint, text: TextConfig) -> TowerSource | None:
    """The checkpoint's tower; None when it has none. Raises UserError when it has one that cannot be used."""
    return TowerSource(checkpoint, text) if any(map(is_vision, checkpoint.entries)) else None
