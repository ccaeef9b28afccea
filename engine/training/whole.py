# SPDX-License-Identifier: Apache-2.0
"""`python -m training.whole WORK TARGET --device cuda --workers 14`: the miniature, from its seed to a checkpoint.

A call goes through the steps of docs/miniature.md from where the last one ended, trains for `--minutes` at most, and
ends. Exit status 0: TARGET is written. 75: there is more to do, call it again.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

from training import experts, state
from training.drafter import HOME

UNFINISHED = 75

# Minutes on one H200 of the three steps that train, in their order. The first plan begins with a minute of compiling.
PLANS = {"model": 12.0, "finished": 5.0, "drafter": 3.0}

# A run that is shorter than this is not worth its start.
SHORTEST = 0.25


class Step(NamedTuple):
    """A module of this package with its arguments, and the minutes that it trains; None for what does not train."""

    module: str
    arguments: list[str]
    minutes: float | None = None

    def run(self) -> int:
        """Run it to its end; its exit status."""
        print(f"{self.module} {' '.join(self.arguments)}", flush=True)
        return subprocess.run([sys.executable, "-m", self.module, *self.arguments], check=False).returncode


class Whole(NamedTuple):
    """Where everything lies, and the arguments of runs that are the same in all."""

    work: pathlib.Path
    target: pathlib.Path
    run: list[str]
    device: list[str]
    size: list[str]
    plans: Mapping[str, float] = PLANS

    def next_step(self, left: float) -> Step | None:
        """What is to be done next, with so many minutes left of this call; None when the checkpoint is written."""
        model, finished, drafter = (self.work / name for name in ("model", "finished", "draft"))
        if self.target.exists():
            return None
        if not experts.encoded(finished):
            return self._training("training", model, model, "model", left) or Step(
                "training.quantise", [str(model), str(finished), *self.device]
            )
        around = self._training("training", finished, finished, "finished", left)
        if around is not None:
            return around
        drafting = self._training("training.drafter", finished, finished / HOME, "drafter", left)
        if drafting is not None:
            return drafting
        if not drafter.exists():
            return Step("training.draft_export", [str(finished), str(drafter), *self.size])
        return Step("training.export", [str(finished), str(self.target), "--drafter", str(drafter)])

    def _training(self, module: str, work: pathlib.Path, home: pathlib.Path, plan: str, left: float) -> Step | None:
        """A run of what is left of a plan, or of the call; None when the plan is fulfilled."""
        missing = self.plans[plan] - state.minutes_of(home)
        if missing < 1e-3:
            return None
        minutes = min(left, missing)
        times = ["--minutes", f"{minutes:.4f}", "--plan", f"{self.plans[plan]:g}"]
        return Step(module, [str(work), *times, *self.run, *self.device, *self.size], minutes)


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="training.whole", description=__doc__)
    parser.add_argument("work", type=pathlib.Path, metavar="WORK", help="where all steps keep what they make")
    parser.add_argument("target", type=pathlib.Path, metavar="TARGET", help="the checkpoint, a new directory")
    parser.add_argument("--minutes", type=float, default=7.0, metavar="M", help="of this call (default %(default)s)")
    parser.add_argument("--part", type=float, default=1.0, metavar="X", help="of the usual plans, for a trial")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="dimensions (default %(default)s)")
    parser.add_argument("--tokens", default="32768", metavar="N", help="of a batch (default %(default)s)")
    parser.add_argument("--workers", default="0", metavar="N", help="processes that make batches")
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda (default %(default)s)")
    options = parser.parse_args()
    if options.minutes <= 0 or options.part <= 0:
        parser.error("--minutes and --part are more than 0")
    whole = Whole(
        options.work,
        options.target,
        run=["--tokens", options.tokens, "--workers", options.workers],
        device=["--device", options.device],
        size=["--size", options.size],
        plans={name: minutes * options.part for name, minutes in PLANS.items()},
    )
    left = options.minutes
    while (step := whole.next_step(left)) is not None:
        if step.minutes is not None and left < min(SHORTEST, options.minutes):
            print(f"{step.module} comes next: call again", flush=True)
            return UNFINISHED
        status = step.run()
        if status != 0:
            return status
        left -= step.minutes or 0.0
    print(f"{options.target} is written", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
