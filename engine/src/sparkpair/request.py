# SPDX-License-Identifier: Apache-2.0
"""What the HTTP side and the engine say to each other: requests, events, figures.

HTTP knows nothing of tensors and the engine knows nothing of text: between them pass token ids. Everything here is
plain data, so either side can be tested without the other.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

import numpy
import numpy.typing

FinishReason = Literal["stop", "length", "cancelled"]

Logits = numpy.typing.NDArray[numpy.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one token is drawn from logits. `temperature` 0 or below is greedy; `top_k` 0 and `min_p` 0 are off.

    `seed` None derives the seed from the prompt's ids, so that an identical request repeats its reply.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MediaPart:
    """A picture or clip inside a prompt.

    `positions` are the prompt's indices that it fills, ascending, one for every token; `patches` uint8 [t * gh * gw,
    values] and `grid` (t, gh, gw) as the media package makes them. `digest` tells contents apart.
    """

    positions: tuple[int, ...]
    patches: numpy.typing.NDArray[numpy.uint8]
    grid: tuple[int, int, int]
    digest: bytes


def media_indices(media: Sequence[MediaPart], start: int, stop: int) -> list[int]:
    """Which of the prompt's positions from `start` up to `stop` are media, counted from `start`."""
    return [position - start for part in media for position in part.positions if start <= position < stop]


class Matcher(Protocol):
    """Follows one reply and says which token may come next. The engine's thread alone calls it, for the tokens that are
    drawn and never for drafts that were not. What it raises ends its reply, and no other.
    """

    def mask(self, logits: Logits) -> Logits:
        """The `logits` [vocab] of the next token, -inf where it may not come; the array given is not written to."""

    def accept(self, token: int) -> int:
        """Take the token that was drawn. Returns the one that stands in the reply: nearly always the same."""

    def drafts(self, proposed: Sequence[int], most: int) -> list[int]:
        """At most `most` drafts for what follows: those that are certain, or else the leading part of `proposed` that
        may come.
        """


class Constraint(Protocol):
    """What a reply has to follow; may serve any number of requests."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a reply."""


@dataclasses.dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue.

    `prompt_ids` is not empty and `len(prompt_ids) + max_new_tokens` is at most the engine's window: the caller checks,
    because only the caller can name the field that was too large. A token of `stop_ids` ends the reply and is the last
    token event. `min_new_tokens` forbids stop ids before that many tokens, unless `constraint` allows nothing else.
    `media` is in the order of the prompt.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    min_new_tokens: int = 0
    background: bool = False
    draft: bool = True
    media: tuple[MediaPart, ...] = ()
    constraint: Constraint | None = None

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt and of the longest reply."""
        return len(self.prompt_ids) + self.max_new_tokens

    @functools.cached_property
    def content_ids(self) -> tuple[int, ...]:
        """The prompt's ids, with negative numbers made of the contents where media stand: equal for equal prompts."""
        if not self.media:
            return self.prompt_ids
        ids = list(self.prompt_ids)
        for part in self.media:
            content = int.from_bytes(hashlib.sha256(part.digest).digest()[:7], "little")
            for index, position in enumerate(part.positions):
                ids[position] = -1 - (content ^ index)
        return tuple(ids)


@dataclasses.dataclass(frozen=True, slots=True)
class RankStep:
    """The last step a rank reported as executed, with the same checksum as rank 0's."""

    rank: int
    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReplyStats:
    """Figures of one finished reply. Times in seconds; `time_to_first_token_s` counts from submission."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_s: float
    decode_s: float
    time_to_first_token_s: float
    ranks: tuple[RankStep, ...]
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TokensEvent:
    """New token ids of a reply, in order; at least one."""

    token_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The last event of a reply. `stop`: a stop id came; `length`: the budget is used up; `cancelled`: asked to end."""

    reason: FinishReason
    stats: ReplyStats


Event = TokensEvent | FinishedEvent


class EngineError(Exception):
    """The engine cannot serve (a rank was lost, a step failed), or cannot finish one reply (its constraint failed). The
    message names the cause and is fit for a client.
    """


class Reply(Protocol):
    """A submitted request: iterate its events once; `cancel` at any time, from the event loop's thread."""

    def events(self) -> AsyncIterator[Event]:
        """Yield events until the FinishedEvent. Raises EngineError when the engine, or the request's constraint, fails
        first.
        """

    def cancel(self) -> None:
        """Free the engine within a step; a request still waiting is dropped at once. Idempotent."""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineHealth:
    """Counters and gauges at one instant; reading them takes no lock the engine's steps take. Totals are of requests
    that have ended, `completion_tokens_running` the tokens so far of those that have not.
    """

    error: str | None
    requests_running: int
    requests_waiting: int
    requests_total: int
    prompt_tokens_total: int
    completion_tokens_total: int
    cached_tokens_total: int
    prefill_seconds_total: float
    decode_seconds_total: float
    decoding: int
    filling: int
    max_streams: int
    step: int
    iteration_s: float
    ranks: tuple[RankStep, ...]
    paused: int = 0
    completion_tokens_running: int = 0
    rounds_total: int = 0
    drafted_total: int = 0
    accepted_total: int = 0
    kept_prompts: int = 0
    kept_bytes: int = 0
    pool_tokens: int = 0
    pool_free_tokens: int = 0

    @property
    def completion_tokens_generated(self) -> int:
        """Tokens of all replies, those that have not ended included."""
        return self.completion_tokens_total + self.completion_tokens_running

    @staticmethod
    def nothing(max_streams: int) -> EngineHealth:
        """The figures of an engine that has not served yet."""
        return EngineHealth(None, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, max_streams, 0, 0.0, ())


class Engine(Protocol):
    """What the HTTP side needs of an engine."""

    @property
    def context_length(self) -> int:
        """Prompt-plus-reply window of one request, in tokens."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def submit(self, request: GenerationRequest) -> Reply:
        """Queue a request. Call from the event loop's thread. Raises EngineError when the engine has died."""

    def health(self) -> EngineHealth:
        """Figures of now."""
