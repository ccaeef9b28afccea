# SPDX-License-Identifier: Apache-2.0
"""What `--drafter` names, held against the model: from headers and configurations alone, and without torch."""

from __future__ import annotations

import dataclasses
import pathlib

from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.errors import UserError
from sparkpair.model.config import TextConfig
from sparkpair.model.dflash2_config import DFlash2Config, check_tensors, load_dflash2_config
from sparkpair.settings import ServeSettings


@dataclasses.dataclass(frozen=True, slots=True)
class MtpFiles:
    """The MTP head of the model's own checkpoint."""

    checkpoint: Checkpoint
    config: TextConfig


@dataclasses.dataclass(frozen=True, slots=True)
class DFlash2Files:
    """A DFlash2 drafter's own checkpoint."""

    checkpoint: Checkpoint
    config: DFlash2Config


def find_mtp(checkpoint: Checkpoint, config: TextConfig) -> MtpFiles:
    """The checkpoint's MTP head. Raises UserError when it has none."""
    if config.mtp_layers == 0:
        raise UserError(
            f"--drafter mtp: {checkpoint.directory} has no MTP layer (num_nextn_predict_layers is 0); "
            "use --drafter none"
        )
    return MtpFiles(checkpoint, config)


def find_dflash2(directory: pathlib.Path, target: TextConfig, world: int) -> DFlash2Files:
    """The drafter in a directory. Raises UserError when it does not fit the model or the ranks."""
    config = load_dflash2_config(directory, target, world)
    checkpoint = Checkpoint(directory)
    check_tensors(checkpoint, config)
    return DFlash2Files(checkpoint, config)


def find_drafter(settings: ServeSettings, config: TextConfig, checkpoint: Checkpoint) -> MtpFiles | DFlash2Files | None:
    """The drafter that the settings name; none where its policy never asks it. Raises UserError."""
    policy = settings.policy()
    if policy is None:
        return None
    if settings.drafter == "mtp":
        return find_mtp(checkpoint, config)
    drafter = find_dflash2(pathlib.Path(settings.drafter), config, settings.tp)
    most = drafter.config.block_size - 1
    if policy.count > most:
        raise UserError(f"--draft-policy {settings.draft_policy}: a block of this drafter has {most} guesses at most")
    return drafter
