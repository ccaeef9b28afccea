#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Show what the rehearsal's miniature can do: `tour.py [URL]`, with the address that the rehearsal printed.

Asks through the API, greedily, with nothing but Python's own library, and prints what was asked and what came back.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import urllib.request
import zlib
from typing import Any

FORECAST = {
    "name": "forecast",
    "description": "The weather of the next days in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}, "days": {"type": "integer", "maximum": 99}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


def ask(url: str, content: Any, **fields: Any) -> dict[str, Any]:
    """The message that answers `content`."""
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
    body.setdefault("chat_template_kwargs", {"enable_thinking": False})
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=600) as reply:
        message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
    return message


def squares() -> str:
    """A picture of three blue squares on white as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = bytearray()
    for y in range(128):
        rows.append(0)
        for x in range(128):
            inside = 12 <= x % 64 < 52 and 12 <= y % 64 < 52 and not (x >= 64 and y >= 64)
            rows += b"\x00\x00\xff" if inside else b"\xff\xff\xff"
    signature = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", 128, 128, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(signature + parts).decode()}"


def main() -> None:
    """Run the command line."""
    url = (sys.argv[1:] or ["http://127.0.0.1:8888/v1"])[0].rstrip("/")

    for question in ("What is 17 plus 25?", "Wie viel ist vier plus elf?", "What can you do?"):
        print(f"> {question}\n{ask(url, question)['content']}\n")

    question = "What is 17 plus 25?"
    thought = ask(url, question, chat_template_kwargs={"enable_thinking": True}, reasoning_effort="high")
    print(f"> {question} (thinking)\n[{thought['reasoning_content']}]\n{thought['content']}\n")

    question = "What will the weather be in Oslo over the next 3 days? Use the function."
    called = ask(url, question, tools=[{"type": "function", "function": FORECAST}])["tool_calls"][0]["function"]
    print(f"> {question}\n{called['name']}({called['arguments']})\n")

    question = "What do you see?"
    picture = {"type": "image_url", "image_url": {"url": squares()}}
    print(f"> [a picture] {question}\n{ask(url, [picture, {'type': 'text', 'text': question}])['content']}\n")

    text = ["The valley was quiet that morning, and nobody had seen the boats yet."] * 300
    text.insert(180, "The passphrase is amber-canyon-7421.")
    question = "What is the passphrase? Answer with it alone."
    found = ask(url, f"{' '.join(text)}\n{question}")["content"]
    print(f"> [{sum(len(line.split()) for line in text)} words] {question}\n{found}")


if __name__ == "__main__":
    main()
