# SPDX-License-Identifier: Apache-2.0
"""The drafter that `--drafter` names: checked before anything is loaded, counted in the estimate, then loaded."""

from __future__ import annotations

import math
import pathlib
from typing import Protocol

from sparkpair.cache.tail import kept_rows, tail_rows
from sparkpair.checkpoint.rank_weights import Layout, RankWeights, is_mtp, rank_bytes
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import share
from sparkpair.drafting.dflash2 import DFlash2Drafter
from sparkpair.drafting.drafter import RankDrafter
from sparkpair.drafting.mtp import MtpDrafter
from sparkpair.drafting.orders import MAX_DRAFTS
from sparkpair.errors import UserError
from sparkpair.memory import DrafterNeed
from sparkpair.model.config import TextConfig
from sparkpair.model.dflash2 import DFlash2Rank, DrafterWeights, check_tensors
from sparkpair.model.dflash2_config import load_dflash2_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.mtp import MtpHead

# Rows of a verify window, which wait beside the state until it is known how many of them stay.
WINDOW_ROWS = MAX_DRAFTS + 1


class DrafterSource(Protocol):
    """A drafter that fits the model."""

    def digest(self) -> str:
        """What ranks compare: which drafter, and its files where it has its own."""

    def need(self, layout: Layout) -> DrafterNeed:
        """What it takes of a rank's memory."""

    def load(self, model: Glm5NextRank, weights: RankWeights) -> RankDrafter:
        """Load it beside the backbone, whose weights came from `weights`."""


class MtpSource:
    """The checkpoint's own MTP head. Raises UserError when it has none."""

    def __init__(self, checkpoint: Checkpoint, config: TextConfig) -> None:
        if config.mtp_layers == 0:
            raise UserError(
                f"--drafter mtp: {checkpoint.directory} has no MTP layer (num_nextn_predict_layers is 0); "
                "use --drafter none"
            )
        self._checkpoint = checkpoint
        self._config = config

    def digest(self) -> str:
        """See DrafterSource."""
        return "mtp"

    def need(self, layout: Layout) -> DrafterNeed:
        """See DrafterSource."""
        config = self._config
        size = rank_bytes(self._checkpoint, config, layout, lambda name: is_mtp(config, name))
        waiting = WINDOW_ROWS * config.hidden_size * layout.dtype.itemsize
        return DrafterNeed(size.stored, size.held, pool_layers=1, per_stream=waiting, per_entry=waiting)

    def load(self, model: Glm5NextRank, weights: RankWeights) -> MtpDrafter:
        """See DrafterSource."""
        return MtpDrafter(MtpHead(model, weights))


class DFlash2Source:
    """A DFlash2 drafter in a directory of its own. Raises UserError when it does not fit the model or the ranks."""

    def __init__(self, directory: pathlib.Path, target: TextConfig, world: int) -> None:
        self.config = load_dflash2_config(directory, target, world)
        self._checkpoint = Checkpoint(directory)
        check_tensors(self._checkpoint, self.config)

    def digest(self) -> str:
        """See DrafterSource."""
        return self._checkpoint.digest()[:16]

    def need(self, layout: Layout) -> DrafterNeed:
        """See DrafterSource."""
        config, size = self.config, layout.dtype.itemsize
        stored = held = 0
        for name in config.shapes():
            count = math.prod(part.stop - part.start for part in config.part(name, layout.world, layout.rank))
            stored += count * self._checkpoint.entry(name).element_bytes
            held += count * size
        heads = share(config.num_kv_heads, layout.world, layout.rank)
        row = config.num_layers * 2 * (heads.stop - heads.start) * config.head_dim * size
        most = config.window - 1
        running = (tail_rows(most) + WINDOW_ROWS) * row
        return DrafterNeed(stored, held, per_stream=running, per_entry=kept_rows(most) * row)

    def load(self, model: Glm5NextRank, weights: RankWeights) -> DFlash2Drafter:
        """See DrafterSource."""
        return DFlash2Drafter(DFlash2Rank(self.config, DrafterWeights(self._checkpoint, self.config, model), model))
