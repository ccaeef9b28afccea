# SPDX-License-Identifier: Apache-2.0
"""`sparkpair serve --check-args`: everything that can be refused without memory, ports or other ranks."""

from __future__ import annotations

import dataclasses
import pathlib

import torch

from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import check_world
from sparkpair.drafting.source import DFlash2Source, DrafterSource, MtpSource
from sparkpair.errors import UserError
from sparkpair.http_side import api_options
from sparkpair.model.config import TextConfig, load_text_config
from sparkpair.model.tower_source import TowerSource, find_tower
from sparkpair.settings import ServeSettings


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model and, where one is asked for, a drafter that fit the settings; nothing is loaded yet.

    `tower` is what looks at pictures, on rank 0 alone.
    """

    config: TextConfig
    checkpoint: Checkpoint
    drafter: DrafterSource | None
    tower: TowerSource | None


def check_model(settings: ServeSettings) -> CheckedModel:
    """Open the checkpoint and the drafter's. Raises UserError naming what does not fit the settings."""
    if settings.device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {settings.device}: torch {torch.__version__} sees no GPU here; use --device cpu")
    config = load_text_config(settings.model)
    checkpoint = Checkpoint(settings.model)
    check_world(config, settings.tp)
    if settings.context > config.max_position_embeddings:
        raise UserError(f"--context {settings.context}: the model's window is {config.max_position_embeddings} tokens")
    tower = find_tower(checkpoint, config) if settings.rank == 0 and settings.http.vision else None
    return CheckedModel(config, checkpoint, _open_drafter(settings, config, checkpoint), tower)


def _open_drafter(settings: ServeSettings, config: TextConfig, checkpoint: Checkpoint) -> DrafterSource | None:
    """The drafter that the settings name; none where its policy never asks it."""
    policy = settings.policy()
    if policy is None:
        return None
    if settings.drafter == "mtp":
        return MtpSource(checkpoint, config)
    drafter = DFlash2Source(pathlib.Path(settings.drafter), config, settings.tp)
    most = drafter.config.block_size - 1
    if policy.count > most:
        raise UserError(f"--draft-policy {settings.draft_policy}: a block of this drafter has {most} guesses at most")
    return drafter


def check_served(settings: ServeSettings) -> None:
    """The same, the rails, and on rank 0 the text files and the keys too. Raises UserError."""
    if settings.roce is not None:
        settings.roce.check_here()
    checked = check_model(settings)
    if settings.rank == 0:
        CheckpointText.load(settings.model)
        api_options(settings, vision=checked.tower is not None)
