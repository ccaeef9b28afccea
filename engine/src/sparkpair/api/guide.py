# SPDX-License-Identifier: Apache-2.0
"""Where a reply is to go: from what a request asks of thinking, calls and the answer's form to the constraint that the
engine follows, and the check of what a constraint cannot keep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sparkpair.api.errors import field_of, form_broken, invalid, too_many_forms, unavailable
from sparkpair.api.generation import Check
from sparkpair.api.options import ApiOptions
from sparkpair.api.params import ChatParams, ReplyParams
from sparkpair.api.structured import AnswerForm
from sparkpair.chat.call_block import CLOSE, KEY_OPEN
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.chat.reasoning import THINK_CLOSE
from sparkpair.chat.steering import Route
from sparkpair.grammar.form import Form, FormRefused, FormsBusy, FormsUnavailable, choice_form
from sparkpair.grammar.library import FormLibrary, Found

Led = tuple[Route | None, Check | None]
"""The constraint of a reply, None where it may go anywhere, and the check of its answer, None where it needs none."""


class Guide:
    """Leads the replies of one server. All of it raises ApiError where a request asks for what cannot be."""

    def __init__(self, options: ApiOptions, checkpoint: CheckpointText) -> None:
        self._tokenizer = checkpoint.tokenizer
        self._forms = FormLibrary(options.model_dir, checkpoint, options.form_cpu_s)

    def warm_up(self) -> None:
        """Get ready for the first form, which would else wait some seconds for that."""
        self._forms.warm_up()

    def close(self) -> None:
        """Compile nothing more."""
        self._forms.close()

    async def text_route(self, params: ReplyParams, stop_ids: frozenset[int]) -> Led:
        """Of a reply that is nothing but text."""
        return await self._formed(self._route(stop_ids), params)

    async def chat_route(self, params: ChatParams, stop_ids: frozenset[int], inside_thinking: bool) -> Led:
        """Of a reply in a conversation, which begins inside the think block or behind it."""
        markers = self._tokenizer.marker_ids
        close = markers.get(THINK_CLOSE)
        closing = () if close is None else (*self._tokenizer.encode_text("\n"), close)
        # A form begins right behind the block.
        blank = () if close is None or params.form is not None else self._tokenizer.encode_text("\n\n")
        route = dataclasses.replace(
            self._route(stop_ids),
            inside_thinking=inside_thinking,
            closing=(*closing, *blank),
            thinking_budget=params.thinking_budget,
            call=params.functions.opening(self._tokenizer),
        )
        if names := params.functions.names:
            found = await self._found(lambda: choice_form(names), "tools")
            route = dataclasses.replace(route, form=found.ending_with((markers[KEY_OPEN], markers[CLOSE])))
        return await self._formed(route, params)

    def _route(self, stop_ids: frozenset[int]) -> Route:
        tokenizer = self._tokenizer
        return Route(
            inside_thinking=False,
            think_close=tokenizer.marker_ids.get(THINK_CLOSE),
            stop_ids=stop_ids,
            call_close=tokenizer.marker_ids.get(CLOSE),
            is_blank=lambda token_id: tokenizer.token_bytes(token_id).isspace(),
        )

    async def _formed(self, route: Route, params: ReplyParams) -> Led:
        check: Check | None = None
        if params.form is not None:
            form = params.form.form
            found = await self._found(lambda: form, params.form.param)
            route = dataclasses.replace(route, form=found.constraint)
            check = self._check(found, params.form) if found.unkept else None
        return None if route.free else route, check

    async def _found(self, form: Callable[[], Form], param: str) -> Found:
        try:
            return await self._forms.find(form())
        except FormRefused as error:
            raise invalid(f"{param}: {error}", field_of(param)) from None
        except FormsBusy:
            raise too_many_forms() from None
        except FormsUnavailable as error:
            raise unavailable(str(error)) from error

    def _check(self, found: Found, asked: AnswerForm) -> Check:
        async def check(answer: str) -> None:
            try:
                problem = await self._forms.problem(found.form, answer)
            except FormsUnavailable as error:
                raise unavailable(str(error)) from error
            if problem is not None:
                raise form_broken(asked.param, problem)

        return check
