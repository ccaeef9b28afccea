# SPDX-License-Identifier: Apache-2.0
"""The checkpoint's vision tower, once it is known to fit: counted in the estimate, then loaded on rank 0."""

from __future__ import annotations

import torch

from sparkpair.checkpoint.names import is_vision
from sparkpair.checkpoint.rank_weights import Layout, RankWeights, rank_bytes
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.media.limits import DECODER_BYTES, DECODERS, FRAME_TOKENS, PREPARED_BYTES
from sparkpair.media.patches import MERGE
from sparkpair.memory import TowerNeed
from sparkpair.model.config import TextConfig
from sparkpair.model.media_encoder import MAX_ROWS, MediaEncoder
from sparkpair.model.vision import VisionTower, workspace_bytes
from sparkpair.model.vision_config import VisionConfig


class TowerSource:
    """A vision tower that fits the model, in a checkpoint with this text model."""

    def __init__(self, checkpoint: Checkpoint, text: TextConfig, config: VisionConfig) -> None:
        self.config = config
        self._checkpoint = checkpoint
        self._text = text

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
