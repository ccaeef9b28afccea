# SPDX-License-Identifier: Apache-2.0
"""Lets web pages of named origins read replies, as plain ASGI. Without a name, browsers keep every page from it.

A page whose origin was not named gets the same reply without the headers, which its browser then withholds.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANY_ORIGIN = "*"
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
READABLE = "x-request-id, retry-after"
PREFLIGHT_AGE_S = "600"


class Cors:
    """Answers preflight requests, which never have a key, and names the origin on every other reply."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._any = ANY_ORIGIN in origins
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on."""
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if not origin or not (self._any or origin in self._origins):
            await self._app(scope, receive, send)
            return
        granted = {"access-control-allow-origin": ANY_ORIGIN if self._any else origin, "vary": "origin"}
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            granted["access-control-allow-methods"] = METHODS
            granted["access-control-allow-headers"] = headers.get("access-control-request-headers", ANY_ORIGIN)
            granted["access-control-max-age"] = PREFLIGHT_AGE_S
            await Response(status_code=204, headers=granted)(scope, receive, send)
            return
        granted["access-control-expose-headers"] = READABLE
        raw = [(name.encode(), value.encode("latin-1")) for name, value in granted.items()]

        async def send_granted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *raw]}
            await send(message)

        await self._app(scope, receive, send_granted)
