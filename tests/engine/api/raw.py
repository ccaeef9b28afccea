# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 written and read byte by byte, for requests that no client library would send."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any


@dataclasses.dataclass
class Answer:
    """A reply read from a raw connection."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def request(
    path: str = "/v1/chat/completions",
    body: bytes | None = None,
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    chunks: list[bytes] | None = None,
) -> bytes:
    """One request. With `chunks` the body goes chunked, else with its length unless `headers` has one."""
    fields = {"Host": "test", **(headers or {})}
    payload = body or b""
    if chunks is not None:
        fields["Transfer-Encoding"] = "chunked"
        payload = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    elif body is not None:
        fields.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + payload


def chat_body(**fields: Any) -> bytes:
    """A chat request's body."""
    return json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of a reply."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return int(head[0].split()[1]), headers


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """A whole reply with a declared length."""
    status, headers = await read_head(reader)
    return Answer(status, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait for the server to close the connection; False when it sends something instead."""
    return await asyncio.wait_for(reader.read(1), 10) == b""
