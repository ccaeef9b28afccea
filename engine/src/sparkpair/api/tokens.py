# SPDX-License-Identifier: Apache-2.0
"""POST /tokenize and /detokenize: text or a conversation to token ids, and ids to text.

Work of this rank's processor alone: nothing here waits for the engine, and nothing long runs in the event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from sparkpair.api.body import off_loop, read_fields
from sparkpair.api.disconnect import attended
from sparkpair.api.errors import invalid, unsupported
from sparkpair.api.fields import Fields
from sparkpair.api.params import chat_params, model_name
from sparkpair.api.serving import OFF_LOOP_CHARACTERS, Serving
from sparkpair.chat.tokenizer import TextTokenizer

router = APIRouter()

SLICE = 8192
"""Ids that are turned into text in one go, so that streams get their turn in between."""


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """The ids of a text, or exactly those that the chat route would run for the same body."""
    serving: Serving = request.app.state.serving
    fields = await read_fields(request)
    with_strings = fields.boolean("return_token_strs", False)
    ids = await attended(request.receive, ids_of(fields, serving))
    serving.notices.unknown("tokenize", fields)
    tokenizer = serving.checkpoint.tokenizer
    limit = serving.engine.context_length
    if len(ids) < SLICE:
        return _json(_tokenized(ids, limit, tokenizer, with_strings))
    return _json(await asyncio.to_thread(_tokenized, ids, limit, tokenizer, with_strings))


async def ids_of(fields: Fields, serving: Serving) -> tuple[int, ...]:
    """The ids of `prompt` or of `messages`. Raises ApiError."""
    prompt = fields.string("prompt")
    markers = fields.boolean("add_special_tokens", True)
    add_generation_prompt = fields.boolean("add_generation_prompt", True)
    if fields.boolean("continue_final_message", False):
        raise unsupported("continue_final_message")
    if fields.get("messages") is None:
        if prompt is None:
            raise invalid("prompt: expected a string, or messages in its place", "prompt")
        model_name(fields, serving.options)
        return await serving.text_ids(prompt, markers)
    if prompt is not None:
        raise invalid("prompt: expected only one of prompt and messages", "prompt")
    params = await off_loop(fields.body_bytes, lambda: chat_params(fields, serving.options, serving.checkpoint))
    return (await serving.chat_prompt(params, add_generation_prompt=add_generation_prompt)).ids


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of token ids, markers included."""
    serving: Serving = request.app.state.serving
    fields = await read_fields(request)
    ids = given_ids(fields, serving)
    serving.notices.unknown("detokenize", fields)
    tokenizer, known = serving.checkpoint.tokenizer, serving.checkpoint.vocab_size
    if len(ids) < OFF_LOOP_CHARACTERS:
        return _json(_detokenized(ids, tokenizer, known))
    return _json(await asyncio.to_thread(_detokenized, ids, tokenizer, known))


def given_ids(fields: Fields, serving: Serving) -> list[Any]:
    """The list `tokens`, whose items are not looked at yet. Raises ApiError."""
    model_name(fields, serving.options)
    ids = fields.get("tokens")
    if not isinstance(ids, list):
        raise invalid("tokens: expected a list of token ids", "tokens")
    return ids


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _tokenized(ids: Sequence[int], limit: int, tokenizer: TextTokenizer, with_strings: bool) -> bytes:
    """The whole reply. A token that is only a part of a character reads as U+FFFD in `token_strs`."""
    parts = [f'{{"count": {len(ids)}, "max_model_len": {limit}, "tokens": [', _joined(ids, str), '], "token_strs": ']
    parts += ["[", _joined(ids, lambda i: json.dumps(_text([i], tokenizer))), "]}"] if with_strings else ["null}"]
    return "".join(parts).encode()


def _joined(ids: Sequence[int], form: Any) -> str:
    return ", ".join(", ".join(map(form, ids[start : start + SLICE])) for start in range(0, len(ids), SLICE))


def _detokenized(ids: list[Any], tokenizer: TextTokenizer, known: int) -> bytes:
    if not all(type(token_id) is int and 0 <= token_id < known for token_id in ids):
        raise invalid(f"tokens: token ids must be whole numbers from 0 to {known - 1}", "tokens")
    return json.dumps({"prompt": _text(ids, tokenizer)}).encode()


def _text(ids: Sequence[int], tokenizer: TextTokenizer) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
