# SPDX-License-Identifier: Apache-2.0
"""Asking an OpenAI-compatible server for one streamed chat completion, with the standard library only.

Proxies of the environment are not used: the server is near. Private to the collection, may change at any
time.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._key_file import authorization
from ansible_collections.sparkpair.serving.plugins.module_utils._smoke import Reply

# Far more than a short answer needs; a server that streams without an end must not fill the memory.
_LINE_BYTES = 1 << 20


class CompletionError(Exception):
    """The server gave no completion. The text says what it did instead, and what to do."""


class Server:
    """A server at `url` (http://host:port, with or without /v1) that gets `timeout_s` seconds for everything."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        self._url = url
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        path = parts.path.rstrip("/")
        self._prefix = path[: -len("/v1")] if path.endswith("/v1") else path
        self._key = api_key
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def served_model(self) -> str:
        """Return the id of the first model the server names. Raises CompletionError."""
        response = self._request("GET", "/v1/models", None)
        try:
            doc = json.loads(response.read(_LINE_BYTES))
            return str(doc["data"][0]["id"])
        except (OSError, http.client.HTTPException) as exc:
            raise self._broken(exc) from exc
        except (ValueError, LookupError, TypeError) as exc:
            raise CompletionError(f"{self._url}/v1/models names no model: is it an OpenAI-compatible server?") from exc

    def health(self) -> dict[str, Any] | None:
        """Return what the server says of itself, None when it says nothing that can be read."""
        try:
            doc = json.loads(self._request("GET", "/health", None).read(_LINE_BYTES))
        except (CompletionError, OSError, http.client.HTTPException, ValueError):
            return None
        return doc if isinstance(doc, dict) else None

    def complete(self, body: dict[str, Any]) -> Reply:
        """Ask for a streamed chat completion and return it. Raises CompletionError."""
        asked = time.monotonic()
        response = self._request("POST", "/v1/chat/completions", body)
        reply = Reply()
        for chunk in self._chunks(response):
            now = time.monotonic() - asked
            if "error" in chunk:
                raise CompletionError(f"The server broke the reply off: {_message(chunk)}")
            reply = _with_chunk(reply, chunk, now)
        return reply

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> http.client.HTTPResponse:
        connection_class = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = connection_class(self._host, self._port, timeout=self._left())
        headers = {"Accept": "application/json, text/event-stream"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        headers.update(authorization(self._key))
        try:
            connection.request(method, self._prefix + path, json.dumps(body) if body is not None else None, headers)
            self._socket = connection.sock
            response = connection.getresponse()
            if response.status == 200:
                return response
            text = response.read(_LINE_BYTES).decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException) as exc:
            raise self._broken(exc) from exc
        hint = " Set api_key to a key the server knows." if response.status == 401 else ""
        raise CompletionError(
            f"{method} {self._url}{path} was answered with status {response.status}: {_message(text)}{hint}"
        )

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        """Yield the documents of an event stream up to [DONE] or its end."""
        while not response.isclosed():
            try:
                # Each piece gets what is left of the whole time, or a trickle of pieces would never end.
                self._socket.settimeout(self._left())
                line = response.readline(_LINE_BYTES)
            except (OSError, http.client.HTTPException) as exc:
                raise self._broken(exc) from exc
            if not line or line.strip() == b"data: [DONE]":
                return
            if not line.startswith(b"data:"):
                continue
            try:
                chunk = json.loads(line[len(b"data:") :])
            except ValueError as exc:
                raise CompletionError(f"The server streamed what is not JSON: {line[:200]!r}") from exc
            if not isinstance(chunk, dict):
                raise CompletionError(f"The server streamed what is not an object: {line[:200]!r}")
            yield chunk

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._broken(TimeoutError())
        return left

    def _broken(self, exc: Exception) -> CompletionError:
        # Two names of one class since Python 3.10.
        if isinstance(exc, (TimeoutError, socket.timeout)):
            return CompletionError(
                f"{self._url} did not finish its answer within {self._timeout_s:g} s. Its /health tells how "
                f"long "
                "the running step takes; raise timeout if it is only slow."
            )
        if isinstance(exc, ConnectionRefusedError):
            return CompletionError(f"Nothing listens at {self._url}: start the server first, or correct url.")
        return CompletionError(f"The connection to {self._url} broke: {exc or type(exc).__name__}.")


def _with_chunk(reply: Reply, chunk: dict[str, Any], now_s: float) -> Reply:
    """Return the reply with one chunk more, which came `now_s` seconds after the request."""
    changes: dict[str, Any] = {}
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    delta = choice.get("delta") if isinstance(choice.get("delta"), dict) else {}
    content, reasoning = (str(delta.get(name) or "") for name in ("content", "reasoning_content"))
    if (content or reasoning) and reply.first_s is None:
        changes["first_s"] = now_s
    changes.update(content=reply.content + content, reasoning=reply.reasoning + reasoning)
    if choice.get("finish_reason") is not None:
        changes.update(finish_reason=choice["finish_reason"], finish_s=now_s)
    if chunk.get("usage") is not None:
        changes["usage"] = chunk["usage"]
    if isinstance(chunk.get("sparkpair"), dict):
        changes["ranks"] = chunk["sparkpair"].get("ranks")
    return dataclasses.replace(reply, **changes)


def _message(error: Any) -> str:
    """Return the message of an error document, or the start of whatever came instead."""
    doc = error
    if isinstance(error, str):
        try:
            doc = json.loads(error)
        except ValueError:
            return error[:300] or "(nothing)"
    if isinstance(doc, dict) and isinstance(doc.get("error"), dict):
        return str(doc["error"].get("message"))
    return str(doc)[:300]
