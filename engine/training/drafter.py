# SPDX-License-Identifier: Apache-2.0
"""`python -m training.drafter WORK --minutes M --plan P`: train the drafter of the model in WORK for some minutes.

Its state and log lie in WORK/drafter, as the model's lie in WORK; `training.draft_export` makes a directory of it that
the engine loads.
"""

from __future__ import annotations

import random

from torch import nn

from training import state
from training.arguments import run_arguments, settings_of
from training.draft_loss import measure_drafts
from training.losses import Losses
from training.mixture import Rows
from training.plan import draft_document, drafter_config
from training.train import RATE, Run, Settings, drawn, log_to, prepare
from training.twin.batch import Batch
from training.twin.drafter import Drafter
from training.twin.model import Twin, products_dtype

HOME = "drafter"

# Shares of steps by kind of rows. Replies in longer rows are short, so there is less to draft.
SHARES: dict[Rows, float] = {"short": 0.8, "middle": 0.15, "long": 0.05}


class DrafterOf:
    """The drafter of the model in WORK, which stays as it is. Implements train.Subject."""

    def __init__(self, settings: Settings) -> None:
        dtype = products_dtype(settings.device)
        target = Twin(prepare(settings.work, settings.size), dtype)
        if state.load(settings.work, target, None) is None:
            raise SystemExit(f"{settings.work} holds no trained model: run `python -m training` there first")
        self._target = target.to(settings.device).eval().requires_grad_(False)
        config = drafter_config(draft_document(settings.size), target.config)
        self._drafter = Drafter(config, dtype).to(settings.device)
        self.model: nn.Module = self._drafter
        self.home = settings.work / HOME
        self.rate = RATE

    def measure(self, batch: Batch, *, everything: bool) -> Losses:
        """See Subject."""
        return measure_drafts(self._target, self._drafter, batch)

    def settle(self, share: float) -> None:
        """See Subject."""

    def next_rows(self, part: float, rng: random.Random) -> tuple[Rows, bool]:
        """See Subject."""
        return drawn(SHARES, rng), False


def main() -> None:
    """Run the command line."""
    settings = settings_of(run_arguments("training.drafter", __doc__, str(RATE)).parse_args())
    with log_to(settings.work / HOME / "log.jsonl") as say:
        Run(settings, subject=DrafterOf).train(say)


if __name__ == "__main__":
    main()
