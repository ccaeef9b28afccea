# SPDX-License-Identifier: Apache-2.0
"""Builds the application: routes, middleware, and one shape for every error."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from sparkpair import __version__
from sparkpair.api import chat, completions, ops
from sparkpair.api.errors import ApiError, ClientGone, error_response
from sparkpair.api.middleware import LastResort, RequestId, TidyPath
from sparkpair.api.options import ApiOptions
from sparkpair.api.serving import Serving
from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.request import Engine

UNKNOWN_ROUTE = 404


def create_app(engine: Engine, options: ApiOptions) -> FastAPI:
    """The API in front of `engine`. Raises UserError when the checkpoint's text files are missing or wrong."""
    app = FastAPI(
        title="sparkpair", version=__version__, redirect_slashes=False, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.serving = Serving(engine, options, CheckpointText.load(options.model_dir))
    for module in (ops, chat, completions):
        app.include_router(module.router, prefix="/v1")
        app.include_router(module.router)
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientGone, _answer_nobody)
    for middleware in (TidyPath, LastResort, RequestId):
        app.add_middleware(middleware)
    return app


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Unknown routes and wrong methods, which the framework finds out."""
    assert isinstance(error, HTTPException)
    unknown = error.status_code == UNKNOWN_ROUTE
    message = f"there is no {request.url.path}" if unknown else f"{request.method} is not allowed here"
    code = "unknown_url" if unknown else None
    return error_response(ApiError(error.status_code, message, code=code, headers=error.headers))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The connection is closed already; the server throws this away."""
    return Response(status_code=400)
