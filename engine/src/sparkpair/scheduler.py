# SPDX-License-Identifier: Apache-2.0
"""Who runs next, and how much of a prompt is read in one step. Knows nothing of the model: it is tested without one.

What the policy guarantees:

- Requests are admitted in order of arrival, foreground before background, as lanes become free. A background request
  never takes the last lane where there are several.
- Every admitted foreground request takes part: those that decode in every step, and of those that still read their
  prompt the oldest reads at least one 64-token block in every step. None starves another.
- While requests decode, prompts are read in portions of about the fill budget, so the longest gap between two tokens
  of a stream is that budget and one round.
- Background requests pause while any foreground request runs. They are the only ones that can be made to wait without
  limit, and only by foreground work.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
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

    def admit(self, running: int) -> list[Job]:
        """The jobs that start now, given the number that run. Waits for one when none runs; empty when closed."""
        with self._changed:
            if running == 0:
                self._changed.wait_for(lambda: self._closed or self.waiting)
            admitted: list[Job] = []
            while not self._closed and running + len(admitted) < self._lanes:
                if self._foreground:
                    admitted.append(self._foreground.popleft())
                elif self._background and (self._lanes == 1 or running + len(admitted) < self._lanes - 1):
                    admitted.append(self._background.popleft())
                else:
                    break
            return admitted

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


class FillBudget:
    """How many prompt rows a step may read beside decoding requests, from how long such steps have taken."""

    def __init__(self, budget_s: float, most_rows: int) -> None:
        self._budget_s = budget_s
        self._most_rows = most_rows
        self._seconds_per_row: float | None = None

    def rows(self, *, decoding: bool) -> int:
        """The most rows of the next step; everything where nobody decodes, or no budget is set."""
        if not decoding or self._budget_s == 0:
            return self._most_rows
        if self._seconds_per_row is None:
            return GRID
        blocks = int(self._budget_s / (self._seconds_per_row * GRID))
        return max(GRID, min(blocks * GRID, self._most_rows))

    def measured(self, rows: int, seconds: float) -> None:
        """A step that read `rows` prompt rows took `seconds`. The newest step counts a quarter."""
        if rows:
            found = seconds / rows
            before = self._seconds_per_row
            self._seconds_per_row = found if before is None else 0.75 * before + 0.25 * found
