# SPDX-License-Identifier: Apache-2.0
"""GET /openapi.json: the routes, and for each the fields that its validation asks for.

The fields are not written down a second time. A body that passes goes through the very functions that check requests,
with a record kept of what they ask for and as what; so a field cannot be read and missing here, or here and not read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from sparkpair import __version__
from sparkpair.api import message_request, response_request, tokens
from sparkpair.api.errors import ApiError
from sparkpair.api.fields import Fields
from sparkpair.api.notices import Notices
from sparkpair.api.params import chat_params, completion_params
from sparkpair.api.serving import Serving

router = APIRouter()

Schema = dict[str, Any]
Read = Callable[[Fields, Serving], object]

MESSAGES: Schema = {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"]}}
CLOSER: dict[str, Schema] = {
    "messages": MESSAGES,
    "tools": {"type": ["array", "null"], "items": {"type": "object"}},
    "stop": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]},
    "input": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object"}}]},
    "tokens": {"type": "array", "items": {"type": "integer"}},
}
"""What can be said of fields that are read as they come and looked at piece by piece."""

SAMPLES: tuple[Any, ...] = (True, 1, "x", ["x"], {"type": "x"})
NOT_SUPPORTED = "not supported by this engine"
HI = [{"role": "user", "content": "Hi"}]
ERRORS = {
    400: "malformed, or asks for what there is not",
    401: "no key, or an unknown one",
    404: "not found",
    408: "did not come to its end in time",
    413: "larger than is read",
    429: "too many requests",
    500: "failed",
    503: "not able to serve at the moment",
}


def _read_response(fields: Fields, serving: Serving) -> None:
    fields.string("previous_response_id")
    fields.boolean("store", True)
    fields.boolean("parallel_tool_calls", True)
    response_request.chat_body(fields, [], response_request.own_items(fields), Notices())


BODIES: dict[str, tuple[dict[str, Any], Read, str]] = {
    "/v1/chat/completions": (
        {"messages": HI},
        lambda fields, serving: chat_params(fields, serving.options, serving.checkpoint),
        "Continue a conversation.",
    ),
    "/v1/completions": (
        {"prompt": "Hi"},
        lambda fields, serving: completion_params(fields, serving.options, serving.checkpoint),
        "Continue a text.",
    ),
    "/v1/responses": ({"input": "Hi"}, _read_response, "Continue a conversation, in OpenAI's Responses."),
    "/v1/messages": (
        {"model": "sparkpair", "messages": HI, "max_tokens": 1},
        lambda fields, serving: message_request.chat_body(fields, Notices(), counting=False),
        "Continue a conversation, in Anthropic's Messages.",
    ),
    "/v1/messages/count_tokens": (
        {"model": "sparkpair", "messages": HI},
        lambda fields, serving: message_request.chat_body(fields, Notices(), counting=True),
        "Count the tokens of a prompt.",
    ),
    "/tokenize": ({"prompt": "Hi"}, tokens.ids_of, "The ids of a text or of a conversation."),
    "/detokenize": ({"tokens": []}, tokens.given_ids, "The text of token ids."),
}
"""Routes that are posted to: a body that passes, what reads it, and what it is for."""

READ: dict[str, str] = {
    "/v1/models": "The served names.",
    "/v1/models/{name}": "One served name.",
    "/v1/responses/{response_id}": "A stored response.",
    "/health": "State and counters.",
    "/streams": "The running requests, without their content.",
    "/metrics": "Prometheus text.",
    "/openapi.json": "This document.",
}


class _Recorder(Fields):
    """Fields that remember what they were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.kinds: dict[str, Schema] = {}

    def get(self, name: str) -> Any:
        self.kinds.setdefault(name, CLOSER.get(name, {}))
        return super().get(name)

    def boolean(self, name: str, default: bool) -> bool:
        self.kinds[name] = {"type": ["boolean", "null"]}
        return super().boolean(name, default)

    def string(self, name: str) -> str | None:
        self.kinds[name] = {"type": ["string", "null"]}
        return super().string(name)

    def object(self, name: str) -> Mapping[str, Any]:
        self.kinds[name] = {"type": ["object", "null"]}
        return super().object(name)

    def integer(self, name: str) -> int | None:
        self.kinds[name] = {"type": ["integer", "null"]}
        return super().integer(name)

    def number(self, name: str) -> float | None:
        self.kinds[name] = {"type": ["number", "null"]}
        return super().number(name)


async def _passes(body: Mapping[str, Any], read: Read, serving: Serving) -> tuple[dict[str, Schema], ApiError | None]:
    """What was asked for, and the refusal if there was one."""
    fields = _Recorder(body)
    try:
        found = read(fields, serving)
        if isinstance(found, Awaitable):
            await found
    except ApiError as error:
        return fields.kinds, error
    return fields.kinds, None


async def body_schema(path: str, serving: Serving) -> Schema:
    """The schema of a route's body."""
    body, read, _ = BODIES[path]
    kinds, refusal = await _passes(body, read, serving)
    assert refusal is None, f"the example of {path} is refused: {refusal}"
    chat, _ = await _passes(*BODIES["/v1/chat/completions"][:2], serving)
    for name, kind in kinds.items():
        if not kind:
            refusals = [(await _passes({**body, name: sample}, read, serving))[1] for sample in SAMPLES]
            if all(refusals) and any(NOT_SUPPORTED in str(refusal) for refusal in refusals):
                kinds[name] = {"type": "null", "description": NOT_SUPPORTED}
            else:
                kinds[name] = chat.get(name, {})
    required = [name for name in body if (await _passes(_without(body, name), read, serving))[1] is not None]
    return {"type": "object", "properties": kinds, **({"required": required} if required else {})}


def _without(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


def _replies(stream: bool, media: str = "application/json") -> dict[str, Any]:
    content: dict[str, Any] = {media: {}}
    if stream:
        content["text/event-stream"] = {}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refusals = {str(status): {"description": text, "content": error} for status, text in ERRORS.items()}
    return {"200": {"description": "the reply", "content": content}, **refusals}


def _parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


async def document(serving: Serving) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for path, summary in READ.items():
        media = "text/plain" if path == "/metrics" else "application/json"
        paths[path] = {
            "get": {"summary": summary, "parameters": _parameters(path), "responses": _replies(False, media)}
        }
    deleted = {"summary": "Forget it.", "parameters": _parameters("/{response_id}"), "responses": _replies(False)}
    paths["/v1/responses/{response_id}"]["delete"] = deleted
    for path, (_, _, summary) in BODIES.items():
        schema = await body_schema(path, serving)
        streams = "stream" in schema["properties"] and path.startswith("/v1/") and "count" not in path
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": {"summary": summary, "requestBody": body, "responses": _replies(streams)}}
    components: dict[str, Any] = {
        "schemas": {
            "Error": {
                "type": "object",
                "required": ["error"],
                "properties": {"error": {"type": "object", "required": ["message", "type"]}},
            }
        }
    }
    secured: dict[str, Any] = {}
    if serving.options.keys.required:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        secured["security"] = [{"key": []}]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sparkpair",
            "version": __version__,
            "description": "Paths are understood with and without /v1. Fields not listed are accepted and ignored.",
        },
        "paths": paths,
        "components": components,
        **secured,
    }


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
async def openapi(request: Request) -> Response:
    """The document."""
    return JSONResponse(await document(request.app.state.serving))
