# SPDX-License-Identifier: Apache-2.0
"""What happens to every request, as plain ASGI: nothing here touches `receive` or holds a reply back."""

from __future__ import annotations

import logging
import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparkpair.api.errors import REQUEST_ID, engine_failed, error_response

logger = logging.getLogger(__name__)

_SLASHES = re.compile(r"/{2,}")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class TidyPath:
    """Takes `/v1//models/` for `/v1/models`: base URLs are typed by people."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route by the tidied path."""
        if scope["type"] == "http":
            scope = {**scope, "path": _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"}
        await self._app(scope, receive, send)


class RequestId:
    """Names every reply in `x-request-id` and `request-id`, each read by some clients: with the client's own id where
    it sent a reasonable one, else with a new one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the header to the reply's start."""
        sent = dict(scope.get("headers", ())).get(b"x-request-id", b"")
        request_id = sent if _REQUEST_ID.fullmatch(sent) else b"req_" + secrets.token_hex(12).encode()
        named = [(b"x-request-id", request_id), (b"request-id", request_id)]

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *named]}
            await send(message)

        await self._app({**scope, REQUEST_ID: request_id.decode()}, receive, send_named)


class LastResort:
    """Turns an error that nobody expected into a 500 without its trace, which goes to the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 500 unless the reply has begun; then the connection can only be closed, by raising again."""
        started = False

        async def send_noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except Exception:
            if started:
                raise
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await error_response(engine_failed("the server failed; its log says why"), scope)(scope, receive, send)
