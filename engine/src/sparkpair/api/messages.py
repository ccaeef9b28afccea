# SPDX-License-Identifier: Apache-2.0
"""POST /messages and /messages/count_tokens, in Anthropic's words."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from sparkpair.api.body import off_loop, read_fields
from sparkpair.api.disconnect import attended
from sparkpair.api.errors import REQUEST_ID, ApiError
from sparkpair.api.fields import Fields
from sparkpair.api.message_dialect import MessagesDialect
from sparkpair.api.message_request import CHAT_NAMES, chat_body
from sparkpair.api.params import ChatParams, chat_params
from sparkpair.api.replies import GenerationResponse
from sparkpair.api.serving import Serving

router = APIRouter()


@router.post("/messages")
async def create_message(request: Request) -> Response:
    """Continue a conversation."""
    serving: Serving = request.app.state.serving
    try:
        params = await _params(request, counting=False)
        work = await attended(request.receive, serving.chat_work(params))
    except ApiError as error:
        raise error.renamed(CHAT_NAMES) from None
    dialect = MessagesDialect(
        params.model,
        len(work.request.prompt_ids),
        request_id=request.scope.get(REQUEST_ID),
        with_token_ids=params.return_token_ids,
    )
    return GenerationResponse(serving, work, dialect)


@router.post("/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """The size of the prompt that the same body would run."""
    serving: Serving = request.app.state.serving
    try:
        params = await _params(request, counting=True)
        prompt = await attended(request.receive, serving.chat_prompt(params))
    except ApiError as error:
        raise error.renamed(CHAT_NAMES) from None
    return JSONResponse({"input_tokens": len(prompt.ids)})


async def _params(request: Request, *, counting: bool) -> ChatParams:
    serving: Serving = request.app.state.serving
    fields = await read_fields(request)

    def check() -> ChatParams:
        body = chat_body(fields, serving.notices, counting=counting)
        return chat_params(Fields(body), serving.options, serving.checkpoint, CHAT_NAMES)

    params = await off_loop(fields.body_bytes, check)
    serving.notices.unknown("messages", fields)
    return params
