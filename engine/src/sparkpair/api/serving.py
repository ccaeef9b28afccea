# SPDX-License-Identifier: Apache-2.0
"""What the routes share: from checked parameters to a request at the engine, and the replies that are
running.

The order is the same for every route: render and encode, check the window, then submit. Until the last step
nothing has been promised to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Iterator

from sparkpair.api.body import BodyRoom
from sparkpair.api.errors import context_exceeded, invalid, queue_full, unavailable
from sparkpair.api.fetch import Fetcher
from sparkpair.api.generation import Check, Generation, ReplyEnd
from sparkpair.api.guide import Guide
from sparkpair.api.media import MediaDesk
from sparkpair.api.metrics import Metrics
from sparkpair.api.notices import Notices
from sparkpair.api.options import ApiOptions
from sparkpair.api.params import ChatParams, CompletionParams, ReplyParams
from sparkpair.api.playout import SingleTokens, smoothed
from sparkpair.api.response_store import ResponseStore
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.chat.decoder import ReplyDecoder
from sparkpair.chat.media import MediaNames, media_of
from sparkpair.chat.memory import ReasoningMemory
from sparkpair.chat.messages import text_length
from sparkpair.chat.pieces import Piece
from sparkpair.chat.template import TemplateError
from sparkpair.chat.tool_calls import CallParser
from sparkpair.media.prepared import Prepared
from sparkpair.request import Engine, EngineError, GenerationRequest, MediaPart, Reply

OFF_LOOP_CHARACTERS = 4 * 1024
"""Prompts from this size on are rendered and encoded in a thread, so that streams go on meanwhile."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as ids. `inside_thinking`: the reply begins inside the think block."""

    ids: tuple[int, ...]
    inside_thinking: bool
    media: tuple[MediaPart, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A request that has passed every check, how to read its reply, and how to check its answer in the end."""

    params: ReplyParams
    request: GenerationRequest
    decoder: ReplyDecoder
    check: Check | None = None


class Serving:
    """The state of one application."""

    def __init__(self, engine: Engine, options: ApiOptions, checkpoint: CheckpointText) -> None:
        self.engine = engine
        self.options = options
        self.checkpoint = checkpoint
        self.notices = Notices()
        self.body_room = BodyRoom()
        self.memory = ReasoningMemory()
        self.responses = ResponseStore()
        self.media = MediaDesk(options.media, Fetcher() if options.vision_urls else None)
        self.guide = Guide(options, checkpoint)
        self.started = int(time.time())
        self.metrics = Metrics(engine, lambda: [(one.prompt_tokens, one.tokens_so_far) for one in self.generations()])
        self._running: set[Generation] = set()
        self._stopping = False
        self._smooths = options.stream_smooth_s > 0

    async def chat_work(self, params: ChatParams) -> Work:
        """Render a conversation and check that it fits. Takes long where there are pictures, or a form to compile.
        Raises ApiError.
        """
        prompt = await self.chat_prompt(params)
        functions = params.functions
        calls = CallParser(functions.functions, parallel=functions.parallel) if functions.functions else None
        inside = prompt.inside_thinking
        work = self._work(params, prompt.ids, "messages", split_thinking=True, inside_thinking=inside, calls=calls)
        route, check = await self.guide.chat_route(params, work.request.stop_ids, inside)
        request = dataclasses.replace(work.request, media=prompt.media, constraint=route)
        return dataclasses.replace(work, request=request, check=check)

    async def completion_work(self, params: CompletionParams) -> Work:
        """Encode a prompt and check that it fits. Raises ApiError."""
        prompt = params.prompt
        ids = prompt if isinstance(prompt, tuple) else await self.text_ids(prompt, params.markers)
        work = self._work(params, ids, "prompt", split_thinking=False, inside_thinking=False)
        route, check = await self.guide.text_route(params, work.request.stop_ids)
        return dataclasses.replace(work, request=dataclasses.replace(work.request, constraint=route), check=check)

    async def chat_prompt(self, params: ChatParams, *, add_generation_prompt: bool = True) -> ChatPrompt:
        """The prompt of a conversation. Raises ApiError."""
        params = dataclasses.replace(params, messages=self.memory.restore(params.messages))
        refs = list(media_of(params.messages))
        media = await self.media.prepare(refs) if refs else []
        if text_length(params.messages) < OFF_LOOP_CHARACTERS:
            return self._chat_prompt(params, media, add_generation_prompt)
        return await asyncio.to_thread(self._chat_prompt, params, media, add_generation_prompt)

    async def text_ids(self, text: str, markers: bool) -> tuple[int, ...]:
        """The ids of a text; with `markers`, markers that it spells become ids."""
        if len(text) < OFF_LOOP_CHARACTERS:
            return self._text_prompt(text, markers)
        return await asyncio.to_thread(self._text_prompt, text, markers)

    @contextlib.contextmanager
    def generation(self, work: Work) -> Iterator[Generation]:
        """Submit a request, and have it count as running until the block ends. Raises ApiError when it is
        not taken.
        """
        if self._stopping:
            raise unavailable("the server is stopping")
        self._admit()
        submit = self._submit_singly if work.params.stream and self._smooths else self.engine.submit
        try:
            generation = Generation(submit, work.request, work.decoder, self.metrics, self.memory.remember, work.check)
        except EngineError as error:
            raise unavailable(str(error)) from error
        self._running.add(generation)
        try:
            yield generation
        finally:
            self._running.discard(generation)
            generation.cancel()

    def stream_pieces(self, generation: Generation) -> AsyncGenerator[Piece | ReplyEnd]:
        """A generation's pieces at the pace at which a stream tells them."""
        return smoothed(generation.pieces(), self.options.stream_smooth_s) if self._smooths else generation.pieces()

    def _submit_singly(self, request: GenerationRequest) -> Reply:
        return SingleTokens(self.engine.submit(request))

    def _admit(self) -> None:
        """Refuse what would have to wait behind as many as may wait.

        The count is our own, because the engine's lags by a step: it is taken and raised without a pause in between,
        so a burst of any size gets exactly the free places. A reply that the engine has finished holds none.
        """
        allowed = self.options.max_queued
        if allowed is None:
            return
        lanes = self.engine.health().max_streams
        if sum(not generation.finished for generation in self._running) >= lanes + allowed:
            raise queue_full(lanes, allowed)

    def generations(self) -> list[Generation]:
        """What the engine is at, the oldest first."""
        running = [generation for generation in self._running if not generation.finished]
        return sorted(running, key=lambda generation: generation.age_s, reverse=True)

    def shut_down(self) -> None:
        """Take no more requests and end those that run, each with a last event."""
        self._stopping = True
        self.guide.close()
        for generation in list(self._running):
            generation.shut_down()
        self.media.close()

    def _chat_prompt(self, params: ChatParams, media: list[Prepared], add_generation_prompt: bool) -> ChatPrompt:
        names = MediaNames()
        try:
            prompt = self.checkpoint.template.render(
                names.named(params.messages),
                tools=params.functions.definitions,
                thinking=params.thinking,
                effort=params.effort,
                clear_thinking=params.clear_thinking,
                add_generation_prompt=add_generation_prompt,
                extra=params.extra,
            )
        except TemplateError as error:
            raise invalid(f"messages: the chat template refuses them: {error}", "messages") from error
        if not media:
            return ChatPrompt(tuple(self.checkpoint.tokenizer.encode_segments(prompt.segments)), prompt.inside_thinking)
        try:
            places = names.place(prompt.segments, media, self.checkpoint.tokenizer)
        except LookupError as error:
            raise invalid(f"messages: {error}", "messages") from None
        parts = [
            MediaPart(positions, media[number].patches, media[number].grid, media[number].digest)
            for number, positions in places.media
        ]
        return ChatPrompt(tuple(places.ids), prompt.inside_thinking, tuple(parts))

    def _text_prompt(self, text: str, markers: bool) -> tuple[int, ...]:
        tokenizer = self.checkpoint.tokenizer
        ids = tokenizer.encode_segments(tokenizer.split_markers(text)) if markers else tokenizer.encode_text(text)
        return tuple(ids)

    def _work(
        self,
        params: ReplyParams,
        ids: tuple[int, ...],
        param: str,
        *,
        split_thinking: bool,
        inside_thinking: bool,
        calls: CallParser | None = None,
    ) -> Work:
        budget = self._budget(params.max_tokens, len(ids), param)
        end_ids = self.checkpoint.stop_ids
        # Nothing may follow an answer that has a form and has come to its end.
        stop_ids = frozenset() if params.ignore_eos and params.form is None else end_ids
        request = GenerationRequest(
            prompt_ids=ids,
            max_new_tokens=budget,
            sampling=params.sampling,
            stop_ids=stop_ids,
            min_new_tokens=min(params.min_tokens, budget),
            background=params.background,
            draft=params.draft,
        )
        decoder = ReplyDecoder(
            self.checkpoint.tokenizer,
            stop_ids=stop_ids,
            stops=params.stops,
            split_thinking=split_thinking,
            inside_thinking=inside_thinking,
            show_ids=end_ids - stop_ids,
            calls=calls,
            verbatim=params.form is not None,
        )
        return Work(params, request, decoder)

    def _budget(self, asked: int | None, prompt: int, param: str) -> int:
        """Tokens the reply may have. Raises ApiError when the prompt leaves none, or not what was asked
        for.
        """
        window = self.engine.context_length
        if prompt >= window or (asked is not None and prompt + asked > window):
            raise context_exceeded(window, prompt, asked or 1, param=param)
        return asked or min(self.options.default_max_tokens, window - prompt)
