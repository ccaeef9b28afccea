# SPDX-License-Identifier: Apache-2.0
"""What a live endpoint is asked to show that it works, and how its answers are judged.

A model with random weights knows nothing, so of it only what the server sees to is asked. Private to the collection,
may change at any time.
"""

from __future__ import annotations

import base64
import concurrent.futures
import json
import struct
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# A function call and a structured reply must have room to end; what is compared may be short.
_ROOM, _SHORT = 512, 24
NAMES = ("needle", "function call", "structured output", "picture", "prompt reuse", "alone and together")

_TOGETHER = 4
_PASSPHRASE = "amber-canyon-7421"

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]


class NoAnswer(Exception):
    """The server did not answer as the API says. The text says what it did."""


class NotOffered(Exception):
    """The server says that it has no such feature. The text is what it said."""


@dataclass(frozen=True)
class Verdict:
    """What one check found: `verdict` is passed, failed or skipped, `words` say why."""

    name: str
    verdict: str
    words: str

    def as_data(self) -> dict[str, str]:
        """Return the verdict as plain data."""
        return asdict(self)


def run(
    ask: Ask, *, trained: bool, pictures: bool, haystack_words: int, only: Collection[str] = NAMES
) -> list[Verdict]:
    """Return the verdict of every check, or of those that `only` names.

    `ask` sends the body of a chat completion and returns the reply, or raises NoAnswer or NotOffered.
    """
    checks: dict[str, Callable[[], str]] = {
        "needle": lambda: needle(ask, haystack_words),
        "function call": lambda: function_call(ask),
        "structured output": lambda: structured(ask),
        "picture": lambda: picture(ask),
        "prompt reuse": lambda: reuse(ask),
        "alone and together": lambda: together(ask),
    }
    no_need = {} if trained else {"needle": "random weights find nothing"}
    if not trained:
        no_need.update({"picture": "random weights see nothing", "function call": "random weights call nothing"})
    elif not pictures:
        no_need["picture"] = "pictures are off"
    return [
        Verdict(name, SKIPPED, no_need[name]) if name in no_need else _verdict(name, checks[name])
        for name in NAMES
        if name in only
    ]


def needle(ask: Ask, words: int) -> str:
    """A passphrase at 60 per cent of a long text is found."""
    line = "The valley was quiet that morning, and nobody had seen the boats yet. "
    count = max(2, words // len(line.split()))
    text = [line] * count
    text.insert(count * 6 // 10, f"The passphrase is {_PASSPHRASE}. ")
    found = content(ask(_body(f"{''.join(text)}\nWhat is the passphrase? Answer with it alone.", 64, temperature=0)))
    _expect(_PASSPHRASE in found, f"in {words} words the passphrase was not found; the answer was {_shown(found)}")
    return f"found in {words} words"


def function_call(ask: Ask) -> str:
    """A function is called with an integer and a text that have the types of its schema."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}, "days": {"type": "integer", "maximum": 99}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    function = {"name": "forecast", "description": "The weather of the next days in a city.", "parameters": schema}
    body = _body("What will the weather be in Oslo over the next 3 days? Use the function.", _ROOM, temperature=0)
    body["tools"] = [{"type": "function", "function": function}]
    calls = _message(ask(body)).get("tool_calls") or []
    _expect(len(calls) == 1, f"{len(calls)} functions were called instead of one")
    called = calls[0]["function"]
    _expect(called["name"] == "forecast", f"the function {called['name']} was called, which there is not")
    arguments = _json(called["arguments"], "the arguments are")
    _expect(
        isinstance(arguments.get("city"), str) and type(arguments.get("days")) is int,
        f"the arguments have other types than asked for: {called['arguments']}",
    )
    return "called with typed arguments"


def structured(ask: Ask) -> str:
    """A reply follows a JSON schema."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 24},
            "population": {"type": "integer", "maximum": 100_000_000},
        },
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    body = _body("Name a city and its population.", _ROOM, temperature=0)
    body["response_format"] = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
    found = content(ask(body))
    document = _json(found, "the reply is")
    _expect(
        set(document) == {"city", "population"}
        and isinstance(document["city"], str)
        and type(document["population"]) is int,
        f"the reply does not follow its schema: {_shown(found)}",
    )
    return "follows its schema"


def picture(ask: Ask) -> str:
    """The colour of a picture is told."""
    url = f"data:image/png;base64,{base64.b64encode(red_square(64)).decode()}"
    body = _body("", 64, temperature=0)
    body["messages"][0]["content"] = [
        {"type": "text", "text": "Which colour fills this picture? One word."},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    found = content(ask(body))
    _expect("red" in found.lower(), f"a red picture was called {_shown(found)}")
    return "a red picture was called red"


def reuse(ask: Ask) -> str:
    """The second turn of a conversation reads again only what is new."""
    system = "You are the keeper of a long register. " * 60
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Open the register."}]
    first = ask({**_body("", _SHORT, temperature=0), "messages": messages})
    said = {"role": "assistant", "content": content(first)}
    second = ask({**_body("", _SHORT, temperature=0), "messages": [*messages, said, _user("Read the first page.")]})
    cached, prompt = _cached(second), int(second["usage"]["prompt_tokens"])
    before = int(first["usage"]["prompt_tokens"])
    _expect(cached >= 0.5 * before, f"{cached} of {prompt} prompt tokens were kept, where the first turn had {before}")
    return f"{cached} of {prompt} prompt tokens were kept"


def together(ask: Ask) -> str:
    """Requests that are served at once get the replies that they get alone."""
    bodies = [_body(f"Tell me about the number {number}.", _SHORT, temperature=0) for number in range(3, 3 + _TOGETHER)]
    alone = [content(ask(body)) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(_TOGETHER) as pool:
        at_once = list(pool.map(lambda body: content(ask(body)), bodies))
    different = [number for number, (one, other) in enumerate(zip(alone, at_once, strict=True), 1) if one != other]
    _expect(not different, f"{len(different)} of {_TOGETHER} replies differ from those of the same requests alone")
    return f"{_TOGETHER} replies at once equal those alone"


def red_square(side: int) -> bytes:
    """Return a PNG of `side` by `side` red pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def content(reply: Mapping[str, Any]) -> str:
    """Return the text of a reply."""
    return str(_message(reply).get("content") or "")


def _verdict(name: str, check: Callable[[], str]) -> Verdict:
    try:
        return Verdict(name, PASSED, check())
    except NotOffered as error:
        return Verdict(name, SKIPPED, f"the server does not offer it: {error}")
    except NoAnswer as error:
        return Verdict(name, FAILED, str(error))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return Verdict(name, FAILED, f"the reply is not what the API says ({type(error).__name__}: {error})")


def _expect(held: bool, otherwise: str) -> None:
    if not held:
        raise NoAnswer(otherwise)


def _body(text: str, max_tokens: int, temperature: float) -> dict[str, Any]:
    return {
        "messages": [_user(text)],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _message(reply: Mapping[str, Any]) -> dict[str, Any]:
    return dict(reply["choices"][0]["message"])


def _cached(reply: Mapping[str, Any]) -> int:
    return int((reply["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _json(text: str, what: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise NoAnswer(f"{what} no JSON object: {_shown(text)}") from error


def _shown(text: str) -> str:
    return repr(text[:80])
