# SPDX-License-Identifier: Apache-2.0
"""Lets requests through that carry a key, as plain ASGI. It stands before everything that reads a body.

Health stays open, so that anything can ask whether the server lives; how it fares is only told to who has a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sparkpair.api.errors import ApiError, error_response, unavailable, wrong_key
from sparkpair.api.keys import KeyRing, KeysUnavailable

HEALTH = frozenset({"/health", "/v1/health"})
METRICS = frozenset({"/metrics", "/v1/metrics"})

IDENTIFIED = "sparkpair.identified"
"""Scope entry: whether the request carries a key. Absent when no keys are set."""

NOBODY = "none"
"""What replies to requests without a key are counted under."""


class Gate:
    """Refuses requests without a key with 401. Every reply is counted by its key's label."""

    def __init__(
        self, app: ASGIApp, keys: KeyRing, open_paths: frozenset[str], count: Callable[[str, int], None]
    ) -> None:
        """`open_paths` need no key; `count` is told the label and the status of every reply."""
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse."""
        label, refusal = self._identify(scope)

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(label or NOBODY, message["status"])
            await send(message)

        if label is None and scope["path"] not in self._open_paths:
            await error_response(refusal, scope)(scope, receive, send_counted)
            return
        await self._app({**scope, IDENTIFIED: label is not None}, receive, send_counted)

    def _identify(self, scope: Scope) -> tuple[str | None, ApiError]:
        """The label of the request's key; without one, what to answer where a key is needed."""
        try:
            return self._keys.label_of(_candidates(scope)), wrong_key()
        except KeysUnavailable:
            return None, unavailable("the server's key file is not usable at the moment; its log says why")


def _candidates(scope: Scope) -> Iterator[bytes]:
    """What a request offers as keys: clients differ in the header they use, and some send both."""
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, credentials = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield credentials.strip()
