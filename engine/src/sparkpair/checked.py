# SPDX-License-Identifier: Apache-2.0
"""`sparkpair serve --check-args`: everything that can be refused without memory, ports or other ranks.

It says so at once: nothing here imports torch, but for a look at the GPU where the settings name one.
"""

from __future__ import annotations

import dataclasses

from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.checkpoint.names import is_vision
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import check_world
from sparkpair.drafting.files import DFlash2Files, MtpFiles, find_drafter
from sparkpair.errors import UserError
from sparkpair.http_side import api_options
from sparkpair.model.config import TextConfig, load_text_config
from sparkpair.model.vision_config import VisionConfig, load_tower_config
from sparkpair.settings import ServeSettings


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model and, where one is asked for, a drafter that fit the settings; nothing is loaded yet.

    `tower` is what looks at pictures, on rank 0 alone.
    """

    config: TextConfig
    checkpoint: Checkpoint
    drafter: MtpFiles | DFlash2Files | None
    tower: VisionConfig | None


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(f"--device {device}: torch {torch.__version__} sees no GPU here; use --device cpu")


def check_model(settings: ServeSettings) -> CheckedModel:
    """Open the checkpoint and the drafter's. Raises UserError naming what does not fit the settings."""
    _check_device(settings.device)
    config = load_text_config(settings.model)
    checkpoint = Checkpoint(settings.model)
    check_world(config, settings.tp)
    if settings.context > config.max_position_embeddings:
        raise UserError(f"--context {settings.context}: the model's window is {config.max_position_embeddings} tokens")
    looks = settings.rank == 0 and settings.http.vision and any(map(is_vision, checkpoint.entries))
    tower = load_tower_config(settings.model, config) if looks else None
    return CheckedModel(config, checkpoint, find_drafter(settings, config, checkpoint), tower)


def check_served(settings: ServeSettings) -> None:
    """The same, the rails, and on rank 0 the text files and the keys too. Raises UserError."""
    if settings.roce is not None:
        settings.roce.check_here()
    checked = check_model(settings)
    if settings.rank == 0:
        CheckpointText.load(settings.model)
        api_options(settings, vision=checked.tower is not None)
