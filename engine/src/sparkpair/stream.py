# SPDX-License-Identifier: Apache-2.0
"""One running request: how far its prompt is read, which token waits to be run, and what a verify window yields.

A window is the pending token and the drafts after it. Row r of its logits draws the token at the position after row
r; as long as that is the draft of the next row, the next row counts too. Drafts only propose: whatever they are,
the tokens that come out are those of drawing one by one. A request's constraint sees those tokens and no others.
"""

from __future__ import annotations

import time

import numpy

from sparkpair.job import Job
from sparkpair.request import FinishReason, Logits, Matcher
from sparkpair.sampling import prompt_seed, sample


class Stream:
    """The state of one admitted request on rank 0."""

    def __init__(self, job: Job, slot: int) -> None:
        request = job.request
        self.job = job
        self.slot = slot
        self.history = list(request.prompt_ids)
        self.filled = 0
        # Prompt tokens that came from a kept state.
        self.cached = 0
        # Positions of the prompt, on the block grid, where a step has to end because the state there is kept.
        self.marks: list[int] = []
        self.produced = 0
        # Rows of the last window that stay; told to every rank with the next one.
        self.kept = 0
        self.window: list[int] = []
        self.drafted = 0
        self.accepted = 0
        self.started = time.monotonic()
        self.first_at: float | None = None
        # What the request's constraint raised; the reply ends there.
        self.failure: Exception | None = None
        self._matcher: Matcher | None = None
        self.seed = request.sampling.seed if request.sampling.seed is not None else prompt_seed(request.prompt_ids)

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that have not been read."""
        return len(self.job.request.prompt_ids) - self.filled

    @property
    def to_next_mark(self) -> int:
        """Prompt tokens to read until a state is kept, or to the prompt's end."""
        ahead = [mark for mark in self.marks if mark > self.filled]
        return min([*ahead, len(self.job.request.prompt_ids)]) - self.filled

    @property
    def budget_left(self) -> int:
        """Tokens the reply may still have."""
        return self.job.request.max_new_tokens - self.produced

    def admissible(self, drafts: list[int], most: int) -> list[int]:
        """Drafts for the next window, at most `most`: what the request's constraint lets through of `drafts`."""
        if self._matcher is None:
            return drafts
        try:
            return self._matcher.drafts(drafts, most)
        except Exception as error:
            self.failure = error
            return []

    def open_window(self, drafts: list[int]) -> list[int]:
        """The rows of the next window: the pending token and the drafts, fewer than the reply has tokens left."""
        self.window = [self.history[-1], *drafts]
        self.drafted += len(drafts)
        return list(self.window)

    def widen_window(self, drafts: list[int]) -> None:
        """The drafter's guesses have been added to the window as every rank ran it."""
        self.window += drafts
        self.drafted += len(drafts)

    def absorb(self, logits: Logits) -> tuple[list[int], FinishReason | None]:
        """Draw from the logits of a window's rows (or of the prompt's last row), [n, vocab].

        Returns the new tokens and why the reply ends when it does. There is at least one, unless the request's
        constraint has failed: then `failure` is set, the tokens before it stand, and the reply is over.
        """
        request = self.job.request
        drafts = self.window[1:]
        tokens: list[int] = []
        reason: FinishReason | None = None
        for row in range(len(logits)):
            token = self._next(logits[row])
            if token is None:
                break
            tokens.append(token)
            self.history.append(token)
            self.produced += 1
            if token in request.stop_ids:
                reason = "stop"
            elif self.budget_left == 0:
                reason = "length"
            if reason is not None or row == len(drafts) or token != drafts[row]:
                break
        self.kept = len(tokens) if self.window else 0
        self.accepted += max(0, len(tokens) - 1)
        self.window = []
        if self.first_at is None:
            self.first_at = time.monotonic()
        return tokens, reason

    def _next(self, logits: Logits) -> int | None:
        """Draw one token as the request's constraint wants it; None when that has failed."""
        constraint = self.job.request.constraint
        if constraint is None:
            return self._draw(logits)
        if self.failure is None:
            try:
                if self._matcher is None:
                    self._matcher = constraint.matcher()
                return self._matcher.accept(self._draw(self._matcher.mask(logits)))
            except Exception as error:
                self.failure = error
        return None

    def _draw(self, logits: Logits) -> int:
        request = self.job.request
        if self.produced < request.min_new_tokens and request.stop_ids:
            going_on = logits.copy()
            going_on[[token for token in request.stop_ids if token < len(logits)]] = -numpy.inf
            if request.constraint is None or numpy.isfinite(going_on).any():
                logits = going_on
        return sample(logits, request.sampling, self.seed, len(self.history))
