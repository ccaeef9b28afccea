# SPDX-License-Identifier: Apache-2.0
"""Steps that take too long: every rank that is in one prints its threads' stacks, and rank 0 says whom all wait for.

A rank alone cannot tell a slow peer from a stopped one. So a follower that has been in a step for too long tells rank 0
so on the control channel, and whether it waits for the others; a thread of its own does, which a stuck step does not
hold up. The rank that stays silent, or that is the only one not to wait, is the one to look at.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Mapping

# How long the reports of the other ranks may take, whose steps began and whose limits end a little later than ours.
REPORT_S = 2.0

# The step in which a rank is, and when it began on the monotonic clock; None between steps.
Running = tuple[int, float]


class StepWatch:
    """Looks at this rank's step from a thread of its own, and reports each one that takes longer than `limit_s` once.

    `running` is asked often and must not block; `on_stuck` is told the step's number after the stacks are printed.
    """

    def __init__(
        self, rank: int, limit_s: float, running: Callable[[], Running | None], on_stuck: Callable[[int], None]
    ) -> None:
        self._rank = rank
        self._limit_s = limit_s
        self._running = running
        self._on_stuck = on_stuck

    def start(self) -> None:
        """Begin to look, for as long as the process lives."""
        threading.Thread(target=self._watch, name="watch steps", daemon=True).start()

    def _watch(self) -> None:
        reported = 0
        while True:
            time.sleep(min(1.0, self._limit_s / 10))
            step = self._running()
            if step is None or step[0] == reported or time.monotonic() - step[1] < self._limit_s:
                continue
            reported = step[0]
            age = time.monotonic() - step[1]
            print(
                f"stuck: rank {self._rank} has been in step {reported} for {age:.1f} s; its threads' stacks follow",
                file=sys.stderr,
                flush=True,
            )
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            self._on_stuck(reported)


def describe_stuck(names: Mapping[int, str], reports: Mapping[int, bool]) -> str:
    """Which ranks to look at, and why, as a sentence without its end.

    `names` has every rank's name as a person knows it; `reports` says of the ranks that reported whether they wait for
    the others.
    """
    silent = [name for rank, name in names.items() if rank not in reports]
    if silent:
        return f"{' and '.join(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
    busy = [names[rank] for rank, waits in reports.items() if not waits]
    if busy:
        return f"{' and '.join(busy)} {'waits' if len(busy) == 1 else 'wait'} for no other rank"
    return f"{' and '.join(names.values())} wait for each other"
