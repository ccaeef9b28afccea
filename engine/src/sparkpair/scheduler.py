# SPDX-License-Identifier: Apache-2.0
"""Who runs next, and how much of a prompt is read in one step. Knows nothing of the model: it is tested without one.

What the policy guarantees:

- Requests are admitted in order of arrival, foreground before background, as lanes become free and the pool has room
  for the whole of them, prompt and longest reply. None overtakes one that waits for room, so the largest is not starved
  by smaller ones. A background request never takes the last lane where there are several.
- Every admitted foreground request takes part: those that decode in every step, and of those that still read their
  prompt the oldest has at least one 64-token block in every portion. None starves another.
- While requests decode, a portion passes through the layers in slices of about the fill budget, one in every step. The
  longest gap between two tokens of a stream is that budget and one round, as long as one layer of one 64-token block
  takes no longer than the budget; a portion never has more rows than that allows.
- Every step of a portion runs at least one layer, so a prompt is read after a bounded number of rounds.
- Background requests pause while any foreground request runs, once the portion that is open has ended. They are the
  only ones that can be made to wait without limit, and only by foreground work.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from sparkpair.grid import GRID


class Queued(Protocol):
    """What the queue needs to know of a job."""

    @property
    def background(self) -> bool:
        """Whether the job waits behind all foreground jobs."""


Job = TypeVar("Job", bound=Queued)


class Admission(Generic[Job]):
    """A closable queue of two classes, shared between the event loop, which adds and drops, and the engine's thread."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._foreground: collections.deque[Job] = collections.deque()
        self._background: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Jobs that have not been admitted."""
        return len(self._foreground) + len(self._background)

    @property
    def closed(self) -> bool:
        """Whether no further job is taken."""
        return self._closed

    def add(self, job: Job) -> bool:
        """Queue a job; False when the queue has been closed."""
        with self._changed:
            if self._closed:
                return False
            (self._background if job.background else self._foreground).append(job)
            self._changed.notify()
            return True

    def drop(self, job: Job) -> bool:
        """Take a waiting job out of the queue; False when it is no longer waiting. The order of the rest is kept."""
        with self._changed:
            for queue in (self._foreground, self._background):
                if job in queue:
                    queue.remove(job)
                    return True
            return False

    def admit(self, running: int, fits: Callable[[Job], bool]) -> Job | None:
        """The job that starts now beside `running` ones, None when there is none; waits for one when none runs.

        A job that does not fit yet waits at the head of its queue, and all behind it with it. None when closed.
        """
        with self._changed:
            if running == 0:
                self._changed.wait_for(lambda: self._closed or self.waiting)
            if self._closed or running >= self._lanes:
                return None
            # With several lanes the last is for foreground requests.
            beside = self._lanes == 1 or running < self._lanes - 1
            queue = self._foreground or (self._background if beside else self._foreground)
            return queue.popleft() if queue and fits(queue[0]) else None

    def close(self) -> list[Job]:
        """Refuse further jobs, wake the engine's thread, and return the jobs that still waited."""
        with self._changed:
            self._closed = True
            left = [*self._foreground, *self._background]
            self._foreground.clear()
            self._background.clear()
            self._changed.notify_all()
            return left


def fill_shares(remaining: Sequence[int], rows: int) -> list[int]:
    """How many prompt tokens each filling request reads in one step.

    `remaining` are the tokens each has left, oldest first, all on the block grid; `rows` is the most there is for all
    together. Blocks go round from the oldest on; the oldest gets one even where `rows` is less.
    """
    shares = [0] * len(remaining)
    room = max(rows, GRID)
    progress = True
    while room > 0 and progress:
        progress = False
        for index, left in enumerate(remaining):
            block = min(GRID, left - shares[index])
            if block > 0 and (block <= room or not any(shares)):
                shares[index] += block
                room -= block
                progress = True
    return shares


class SliceBudget:
    """How a portion of prompts is cut beside decoding requests, from how long its parts have taken.

    A pass has `units`: the layers, and its end. A slice is as many of the next units as fit the budget, at least one.
    What a unit costs a row is learned: an unknown one runs alone, a slower one counts at once, a faster one by a
    quarter.
    """

    def __init__(self, budget_s: float, most_rows: int, units: int) -> None:
        self.units = units
        self._budget_s = budget_s
        self._most_rows = most_rows
        self._costs: list[float | None] = [None] * units

    @property
    def cuts(self) -> bool:
        """Whether passes are cut at all; without a budget they are not."""
        return self._budget_s > 0

    def rows(self, *, decoding: bool) -> int:
        """The most rows of the next portion: all there may be, unless the slowest unit of them would not fit."""
        if not decoding or not self.cuts:
            return self._most_rows
        slowest = max((cost for cost in self._costs if cost is not None), default=self._budget_s)
        blocks = int(self._budget_s / (slowest * GRID)) if slowest > 0 else self._most_rows
        return max(GRID, min(blocks * GRID, self._most_rows))

    def next_units(self, first: int, rows: int, *, decoding: bool) -> int:
        """How many units from `first` on the next slice of `rows` has; all that are left where nobody decodes."""
        if not decoding or not self.cuts:
            return self.units - first
        room, count = self._budget_s, 0
        for cost in self._costs[first:]:
            if cost is None:
                return max(1, count)
            room -= cost * rows
            if room < 0 and count:
                return count
            count += 1
        return count

    def measured(self, first: int, count: int, rows: int, seconds: float) -> None:
        """The `count` units from `first` on took `seconds` for `rows` rows."""
        costs = self._costs[first : first + count]
        expected = rows * sum(cost or 0.0 for cost in costs)
        ratio = seconds / expected if expected else 1.0
        weight = 1.0 if ratio > 1 else 0.25
        for unit, cost in enumerate(costs, start=first):
            known = cost * (1 + weight * (ratio - 1)) if cost else seconds / (rows * count)
            self._costs[unit] = known
