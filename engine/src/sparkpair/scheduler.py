# SPDX-License-Identifier: Apache-2.0
"""Which request runs next. One at a time, in order of arrival; background requests wait behind the others.

The queue is shared between the event loop, which adds and cancels, and the engine's thread, which takes. It knows
nothing of the model, so its policy can be tested without one.
"""

from __future__ import annotations

import collections
import threading
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What the queue needs to know of a job."""

    @property
    def background(self) -> bool:
        """Whether the job waits behind all foreground jobs."""


Job = TypeVar("Job", bound=Queued)


class Scheduler(Generic[Job]):
    """A closable queue of two classes."""

    def __init__(self) -> None:
        self._foreground: collections.deque[Job] = collections.deque()
        self._background: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Jobs that have not been taken."""
        return len(self._foreground) + len(self._background)

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

    def take(self) -> Job | None:
        """Wait for the next job; None when the queue has been closed."""
        with self._changed:
            while not self._closed and self.waiting == 0:
                self._changed.wait()
            if self._closed:
                return None
            return (self._foreground or self._background).popleft()

    def close(self) -> list[Job]:
        """Refuse further jobs, wake the taker, and return the jobs that still waited."""
        with self._changed:
            self._closed = True
            left = [*self._foreground, *self._background]
            self._foreground.clear()
            self._background.clear()
            self._changed.notify_all()
            return left
