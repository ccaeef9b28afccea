# SPDX-License-Identifier: Apache-2.0
"""/responses, in OpenAI's words: create a response, read it again, go on from it, delete it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from sparkpair.api.body import off_loop, read_fields
from sparkpair.api.disconnect import attended
from sparkpair.api.errors import ApiError, invalid
from sparkpair.api.fields import Fields
from sparkpair.api.params import ChatParams, chat_params
from sparkpair.api.replies import GenerationResponse
from sparkpair.api.response_dialect import ResponsesDialect
from sparkpair.api.response_request import CHAT_NAMES, chat_body, own_items
from sparkpair.api.response_store import ResponseStore
from sparkpair.api.serving import Serving

router = APIRouter()


@router.post("/responses")
async def create_response(request: Request) -> Response:
    """Continue a conversation."""
    serving: Serving = request.app.state.serving
    store: ResponseStore = serving.responses
    fields = await read_fields(request)
    previous = fields.string("previous_response_id")
    earlier = [] if previous is None else _conversation(store, previous)
    own = [_resolved(item, store) for item in own_items(fields)]
    keep = fields.boolean("store", True)

    def check() -> ChatParams:
        body = chat_body(fields, earlier, own, serving.notices)
        return chat_params(Fields(body), serving.options, serving.checkpoint, CHAT_NAMES)

    try:
        params = await off_loop(fields.body_bytes, check)
        work = await attended(request.receive, serving.chat_work(params))
    except ApiError as error:
        raise error.renamed(CHAT_NAMES) from None
    serving.notices.unknown("responses", fields)

    def finished(response: dict[str, Any]) -> None:
        if keep:
            store.put(response, own, previous, fields.body_bytes)

    settings = {"model": params.model, "previous_response_id": previous, "store": keep, **_repeated(fields)}
    dialect = ResponsesDialect(settings, with_token_ids=params.return_token_ids, keep=finished)
    return GenerationResponse(serving, work, dialect)


@router.api_route("/responses/{response_id}", methods=["GET", "HEAD"])
async def get_response(request: Request, response_id: str) -> Response:
    """A stored response."""
    found = request.app.state.serving.responses.get(response_id)
    if found is None:
        raise _unknown(response_id)
    return JSONResponse(found)


@router.delete("/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response."""
    if not request.app.state.serving.responses.delete(response_id):
        raise _unknown(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


def _conversation(store: ResponseStore, response_id: str) -> list[Any]:
    items = store.conversation(response_id)
    if items is None:
        raise invalid(
            f"previous_response_id: response {response_id[:64]!r}, or one before it, is not stored",
            "previous_response_id",
        )
    return items


def _unknown(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{response_id[:64]}' not found.", param="response_id")


def _resolved(item: Any, store: ResponseStore) -> Any:
    """The item that a reference names, where it is stored here."""
    if isinstance(item, dict) and item.get("type") == "item_reference" and isinstance(item.get("id"), str):
        return store.item(item["id"]) or item
    return item


def _repeated(fields: Fields) -> dict[str, Any]:
    """What a response says again of its request."""
    reasoning, text = fields.object("reasoning"), fields.object("text")
    return {
        "instructions": fields.get("instructions"),
        "tools": fields.get("tools") or [],
        "tool_choice": fields.get("tool_choice") or "auto",
        "parallel_tool_calls": fields.boolean("parallel_tool_calls", True),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "text": {"format": text.get("format") or {"type": "text"}},
        "temperature": fields.get("temperature"),
        "top_p": fields.get("top_p"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": fields.get("metadata") or {},
        "truncation": "disabled",
        "user": fields.get("user"),
        "background": False,
    }
