# SPDX-License-Identifier: Apache-2.0
"""Every way a request can fail, and the one place where a failure becomes a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

INVALID = "invalid_request_error"
SERVER = "server_error"
RATE_LIMIT = "rate_limit_error"
RETRY_AFTER = {"Retry-After": "5"}

REQUEST_ID = "sparkpair.request_id"
"""Scope entry: the name of the request in logs and replies."""

MESSAGES_PATH = re.compile(r"/+(v1/+)?messages(/|$)")
MESSAGES_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "overloaded_error",
    503: "overloaded_error",
}
"""The Messages dialect's words for a status; any other is an invalid request, or from 500 on an error of the API."""


class ApiError(Exception):
    """A request that is answered with an error: HTTP status, message for the client, and OpenAI's error
    fields.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        messages_wording: str | None = None,
    ) -> None:
        """`messages_wording` is what the Messages dialect says instead, where its clients look for words of its own."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.messages_wording = messages_wording

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """The same error about a field that the client knows under another name; of several names that its message
        begins with, the longest counts.
        """
        begins = [name for name in names if re.match(rf"{re.escape(name)}\b", self.message)]
        if begins:
            place = max(begins, key=len)
            self.message = names[place] + self.message.removeprefix(place)
        if self.param is not None and self.param in names:
            self.param = field_of(names[self.param])
        return self


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


def field_of(place: str) -> str:
    """The field of a request in which a place is: what `param` says."""
    return re.split(r"[.\[]", place, maxsplit=1)[0]


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is malformed or asks for what the engine does not have. `param` names the field."""
    return ApiError(400, message, param=param, code=code)


def unsupported(field: str) -> ApiError:
    """400: a field that would change the reply in a way this engine cannot."""
    return invalid(f"{field}: not supported by this engine", field)


def model_not_found(name: str) -> ApiError:
    """404: a model that is not served."""
    message = f"The model `{name}` does not exist or you do not have access to it."
    return ApiError(404, message, code="model_not_found", param="model")


def wrong_key() -> ApiError:
    """401: no key, or one that is not known. The message is the same for both."""
    message = "a valid API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def body_too_large(limit: int) -> ApiError:
    """413: the request's body is larger than is read."""
    return ApiError(413, f"the request body is larger than {limit} bytes, the most this server reads")


def context_exceeded(window: int, prompt: int, budget: int, *, param: str) -> ApiError:
    """400: prompt and reply together do not fit the window. The opening words are those that clients look
    for.
    """
    message = (
        f"This model's maximum context length is {window} tokens. However, you requested {prompt + budget} tokens"
        f" ({prompt} in the {param}, {budget} in the completion)."
        " Please reduce the length of the messages or completion. (context_length_exceeded)"
    )
    if prompt >= window:
        wording = f"prompt is too long: {prompt} tokens > {window} maximum"
    else:
        wording = (
            f"input length and `max_tokens` exceed context limit: {prompt} + {budget} > {window},"
            " decrease input length or `max_tokens` and try again"
        )
    return ApiError(400, message, param=param, code="context_length_exceeded", messages_wording=wording)


def engine_failed(message: str) -> ApiError:
    """500: the engine failed while it worked on the reply."""
    return ApiError(500, message, type=SERVER)


def unavailable(message: str) -> ApiError:
    """503: the engine takes no requests, now or any more."""
    return ApiError(503, message, type=SERVER, headers=RETRY_AFTER)


def too_many_bodies() -> ApiError:
    """429: as many bytes of requests are being read as may."""
    message = "the server is reading too many large requests; try again later"
    return ApiError(429, message, type=RATE_LIMIT, code="rate_limit_exceeded", headers=RETRY_AFTER)


def too_many_media() -> ApiError:
    """429: as many bytes of pictures are held as may be."""
    message = "the server holds as many pictures and clips as it may; try again later"
    return ApiError(429, message, type=RATE_LIMIT, code="rate_limit_exceeded", headers=RETRY_AFTER)


def too_many_forms() -> ApiError:
    """429: as many forms of answers are being compiled as may."""
    message = "the server is compiling too many schemas and grammars; try again later"
    return ApiError(429, message, type=RATE_LIMIT, code="rate_limit_exceeded", headers=RETRY_AFTER)


def form_broken(param: str, problem: str) -> ApiError:
    """500: a finished answer lacks what could only be checked in the end. The same request would give it again."""
    message = f"{param}: the answer came to its end and is not what was asked for: {problem}"
    return ApiError(500, message, type=SERVER, param=field_of(param), headers={"x-should-retry": "false"})


def queue_full(running: int, waiting: int) -> ApiError:
    """429: as many requests run and wait as may."""
    message = f"the server is busy: {running} requests run and {waiting} may wait; try again later"
    return ApiError(429, message, type=RATE_LIMIT, code="rate_limit_exceeded", headers=RETRY_AFTER)


def error_body(error: ApiError) -> dict[str, Any]:
    """The error object of the OpenAI routes; always all four keys."""
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": fields}


def messages_error_body(error: ApiError, request_id: str | None) -> dict[str, Any]:
    """The error object of the Messages routes."""
    kind = MESSAGES_TYPES.get(error.status, "api_error" if error.status >= 500 else INVALID)
    message = error.messages_wording or error.message
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def error_response(error: ApiError, scope: Scope | None = None) -> Response:
    """The whole reply to a request that failed before its reply began, in the dialect of the request's path."""
    if scope is not None and MESSAGES_PATH.match(scope["path"]):
        body = messages_error_body(error, scope.get(REQUEST_ID))
    else:
        body = error_body(error)
    content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    return Response(content, error.status, error.headers, "application/json")
