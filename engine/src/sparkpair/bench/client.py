# SPDX-License-Identifier: Apache-2.0
"""One streamed chat request with the arrival of every event, by the standard library alone: it is what is timed."""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from sparkpair.errors import UserError

# What forces the whole length, and what turns thinking off; left out in this order where a server refuses them.
FORCING = ("min_tokens", "ignore_eos", "stop")
THINKING = ("chat_template_kwargs",)


@dataclasses.dataclass(slots=True)
class Reply:
    """What one request gave. Times in seconds of the monotonic clock; `arrivals` are of events with text."""

    sent: float
    arrivals: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    counted: bool = False
    finish: str = ""
    text: str = ""

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.arrivals[0] - self.sent

    @property
    def rate(self) -> float:
        """Tokens a second behind the first event: (tokens - 1) / (last - first)."""
        span = self.arrivals[-1] - self.arrivals[0]
        return (self.tokens - 1) / span if span > 0 else 0.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between an event and the next."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def digest(self) -> str:
        """SHA-256 of the text, by which two runs can be compared."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Client:
    """A server by its base URL, as `http://host:port` or with `/v1` behind it."""

    def __init__(self, url: str, *, model: str = "", key: str = "", timeout_s: float = 360.0) -> None:
        found = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if found.scheme not in ("http", "https") or not found.hostname:
            raise UserError(f"--url {url}: expected http://HOST:PORT")
        self._secure = found.scheme == "https"
        self._where = (found.hostname, found.port or (443 if self._secure else 80))
        self._root = found.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._timeout = timeout_s
        self.url = url
        self.model = model or self._served()

    def _served(self) -> str:
        models = self.get("/v1/models")
        try:
            return str(models["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise UserError(f"{self.url} names no model; name it with --model") from None

    def get(self, path: str) -> dict[str, Any]:
        """A JSON document; empty where the server has none there. Raises UserError when the server is not there."""
        with self._open("GET", path, None) as (status, lines):
            body = b"".join(lines)
        if status in (401, 403):
            raise UserError(f"{self.url} wants a key: set --key-file")
        try:
            found = json.loads(body) if status == 200 else {}
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}

    def chat(self, messages: list[dict[str, str]], on_event: Callable[[], None] | None = None, **extra: Any) -> Reply:
        """Stream a chat reply to its end; `on_event` is called for every event with text. Raises UserError."""
        body = {"model": self.model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        body |= extra
        for dropped in ((), FORCING, FORCING + THINKING):
            kept = {name: value for name, value in body.items() if name not in dropped}
            status, reply, problem = self._stream(kept, on_event)
            if status != 400:
                break
        if status != 200:
            raise UserError(f"{self.url} answered {status}: {problem}")
        if not reply.arrivals:
            raise UserError(f"{self.url} answered without any text (finish_reason {reply.finish or 'missing'})")
        if not reply.counted:
            reply.tokens = max(1, len(reply.text) // 4)
        return reply

    def _stream(self, body: dict[str, Any], on_event: Callable[[], None] | None) -> tuple[int, Reply, str]:
        reply = Reply(time.monotonic())
        with self._open("POST", "/v1/chat/completions", body) as (status, lines):
            if status != 200:
                return status, reply, b"".join(lines)[:300].decode(errors="replace")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                now = time.monotonic()
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                if _take(reply, json.loads(data), now) and on_event is not None:
                    on_event()
        return status, reply, ""

    def _open(self, method: str, path: str, body: dict[str, Any] | None) -> _Answer:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(*self._where, timeout=self._timeout)
        content = None if body is None else json.dumps(body)
        return _Answer(connection, method, self._root + path, content, self._headers, self.url)


class _Answer:
    """A request's status and lines, inside a `with`."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        content: str | None,
        headers: dict[str, str],
        url: str,
    ) -> None:
        self._connection = connection
        self._request = (method, path, content, headers)
        self._url = url

    def __enter__(self) -> tuple[int, Iterator[bytes]]:
        try:
            self._connection.request(*self._request)
            response = self._connection.getresponse()
        except OSError as error:
            self._connection.close()
            raise UserError(f"{self._url} cannot be reached: {error}") from None
        return response.status, iter(response.readline, b"")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._connection.close()
        if isinstance(error, OSError | http.client.HTTPException | ValueError):
            raise UserError(f"{self._url} broke off an answer: {error}") from None


def _take(reply: Reply, event: dict[str, Any], now: float) -> bool:
    """Count an event in; whether it brought text."""
    if "error" in event:
        raise UserError(f"the stream ended with an error: {event['error']}")
    usage = event.get("usage")
    if usage:
        reply.prompt_tokens = int(usage.get("prompt_tokens", 0))
        reply.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        reply.tokens, reply.counted = int(usage.get("completion_tokens", 0)), True
    text = ""
    for choice in event.get("choices", []):
        delta = choice.get("delta", {})
        text += (delta.get("content") or "") + (delta.get("reasoning_content") or delta.get("reasoning") or "")
        reply.finish = choice.get("finish_reason") or reply.finish
    if text:
        reply.text += text
        reply.arrivals.append(now)
    return bool(text)
