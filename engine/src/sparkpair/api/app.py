# SPDX-License-Identifier: Apache-2.0
"""Builds the application: routes, middleware, and one shape for every error."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from sparkpair import __version__
from sparkpair.api import chat, completions, messages, openapi, ops, page, responses, tokens
from sparkpair.api.cors import Cors
from sparkpair.api.errors import ApiError, ClientGone, error_response
from sparkpair.api.gate import HEALTH, METRICS, Gate
from sparkpair.api.middleware import LastResort, RequestId, TidyPath
from sparkpair.api.options import ApiOptions
from sparkpair.api.serving import Serving
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.request import Engine

UNKNOWN_ROUTE = 404
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def create_app(engine: Engine, options: ApiOptions, checkpoint: CheckpointText | None = None) -> FastAPI:
    """The API in front of `engine`, with the `checkpoint` that has been read already if there is one. Raises UserError
    when the checkpoint's text files are missing or wrong.
    """
    app = FastAPI(
        title="sparkpair", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.serving = Serving(engine, options, checkpoint or CheckpointText.load(options.model_dir))
    for module in (openapi, ops, chat, completions, responses, messages, tokens):
        app.include_router(module.router, prefix="/v1")
        app.include_router(module.router)
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientGone, _answer_nobody)
    if options.page:
        app.include_router(page.router)
    if options.keys.required:
        open_paths = HEALTH | (METRICS if options.open_metrics else set()) | ({page.PATH} if options.page else set())
        count = app.state.serving.metrics.count_reply
        app.add_middleware(Gate, keys=options.keys, open_paths=open_paths, count=count)
    app.add_middleware(TidyPath)
    app.add_middleware(LastResort)
    if options.cors_origins:
        app.add_middleware(Cors, origins=options.cors_origins)
    app.add_middleware(RequestId)
    return app


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.scope)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Unknown routes and wrong methods, which the framework finds out; and OPTIONS, which asks for the right ones."""
    assert isinstance(error, HTTPException)
    if error.status_code == UNKNOWN_ROUTE:
        unknown = ApiError(error.status_code, f"there is no {request.url.path}", code="unknown_url")
        return error_response(unknown, request.scope)
    allow = {"Allow": ", ".join([*_allowed(request), "OPTIONS"])}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=allow)
    refusal = ApiError(error.status_code, f"{request.method} is not allowed here", headers=allow)
    return error_response(refusal, request.scope)


def _allowed(request: Request) -> list[str]:
    """The methods that the request's path has; a path may have several routes."""
    routes = request.app.router.routes
    return [
        method
        for method in METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The connection is closed already; the server throws this away."""
    return Response(status_code=400)
