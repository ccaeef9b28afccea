# SPDX-License-Identifier: Apache-2.0
"""The drafter that `--drafter` names, once it is known to fit: counted in the estimate, then loaded."""

from __future__ import annotations

import math
from typing import Protocol

from sparkpair.cache.tail import kept_rows, tail_rows
from sparkpair.checkpoint.names import is_mtp
from sparkpair.checkpoint.rank_weights import Layout, RankWeights, rank_bytes
from sparkpair.checkpoint.split import share
from sparkpair.drafting.dflash2 import DFlash2Drafter
from sparkpair.drafting.drafter import RankDrafter
from sparkpair.drafting.files import DFlash2Files, MtpFiles
from sparkpair.drafting.mtp import MtpDrafter
from sparkpair.drafting.orders import MAX_DRAFTS
from sparkpair.memory import DrafterNeed
from sparkpair.model.dflash2 import DFlash2Rank, DrafterWeights
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
    """The checkpoint's own MTP head."""

    def __init__(self, files: MtpFiles) -> None:
        self._checkpoint = files.checkpoint
        self._config = files.config

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
    """A DFlash2 drafter in a directory of its own."""

    def __init__(self, files: DFlash2Files) -> None:
        self.config = files.config
        self._checkpoint = files.checkpoint

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


def source_of(files: MtpFiles | DFlash2Files) -> DrafterSource:
    """The source of a drafter that fits."""
    return MtpSource(files) if isinstance(files, MtpFiles) else DFlash2Source(files)
