# SPDX-License-Identifier: Apache-2.0
"""Whether an answer is what a working model gives: not whether it is right, but whether it is one.

Pure functions. Private to the collection, may change at any time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

# A collapsed model repeats one token for ever; no token of an ordinary answer is longer than this.
_UNIT_CHARACTERS = 16
_REPEATS = 4
_SHORTEST_COLLAPSE = 8


@dataclasses.dataclass(frozen=True)
class Reply:
    """A streamed completion, put together.

    `usage` and `ranks` are as the server sent them, None when it sent none. Times are seconds from the
    request to the first piece of text and to the finish; `finish_reason` is None when the stream ended
    without one.
    """

    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Any = None
    ranks: Any = None
    first_s: float | None = None
    finish_s: float | None = None


def objections(reply: Reply, max_tokens: int, expected_ranks: int | None) -> list[str]:
    """Return what is wrong with a reply, one sentence each; nothing when it is sane.

    `expected_ranks` None leaves out what the ranks reported, for an engine that reports nothing.
    """
    found = [_about_content(reply), _about_finish(reply, max_tokens), _about_usage(reply.usage, max_tokens)]
    if expected_ranks is not None:
        found.append(_about_ranks(reply.ranks, expected_ranks))
    return [objection for objection in found if objection]


def repeated_unit(text: str) -> str | None:
    """Return what `text` consists of when it is one short unit over and over, else None.

    White space counts as one space, and the last repeat may be cut off. A text of less than eight characters
    is too short to tell.
    """
    text = " ".join(text.split())
    if len(text) < _SHORTEST_COLLAPSE:
        return None
    if len(set(text) - {" "}) == 1:
        return text[0]
    for length in range(1, min(_UNIT_CHARACTERS, len(text) // _REPEATS) + 1):
        if all(text[index] == text[index - length] for index in range(length, len(text))):
            return text[:length]
    return None


def decode_rate(reply: Reply) -> float | None:
    """Return tokens a second from the first text to the finish, None when there was nothing between them."""
    tokens = reply.usage["completion_tokens"]
    if reply.first_s is None or reply.finish_s is None or tokens < 2 or reply.finish_s <= reply.first_s:
        return None
    return round((tokens - 1) / (reply.finish_s - reply.first_s), 2)


def _about_content(reply: Reply) -> str | None:
    if not reply.content.strip():
        if reply.reasoning.strip():
            return f"The answer is blank, the model only reasoned: {_shown(reply.reasoning)}."
        return f"The answer is blank: {_shown(reply.content)}."
    unit = repeated_unit(reply.content)
    if unit is None:
        return None
    what = "one character" if len(unit) == 1 else f"{_shown(unit)}"
    return f"The answer is nothing but {what} repeated, which a collapsed model gives: {_shown(reply.content)}."


def _about_finish(reply: Reply, max_tokens: int) -> str | None:
    if reply.finish_reason is None:
        return "The stream ended without a finish reason, so the reply was cut off."
    if reply.finish_reason not in ("stop", "length"):
        return f"The finish reason is {reply.finish_reason!r}, but a plain answer ends with 'stop' or 'length'."
    tokens = _count(reply.usage, "completion_tokens")
    if reply.finish_reason == "length" and tokens is not None and tokens < max_tokens:
        return f"The finish reason is 'length' after {tokens} tokens, but {max_tokens} were allowed."
    return None


def _about_usage(usage: Any, max_tokens: int) -> str | None:
    prompt, completion, total = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    if prompt is None or completion is None or total is None:
        return f"The usage is {usage!r}, without whole numbers for prompt, completion and total tokens."
    if prompt < 1:
        return f"The usage counts {prompt} prompt tokens, but a prompt was sent."
    if not 1 <= completion <= max_tokens:
        return f"The usage counts {completion} completion tokens, but 1 to {max_tokens} were possible."
    if prompt + completion != total:
        return f"The usage does not add up: {prompt} + {completion} tokens, but {total} in total."
    return None


def _about_ranks(ranks: Any, expected: int) -> str | None:
    reported = ranks if isinstance(ranks, list) else []
    steps = {_count(one, "rank"): _count(one, "step") for one in reported}
    if len(reported) != expected or set(steps) != set(range(expected)) or None in steps.values():
        return f"The reply must name ranks 0 to {expected - 1} with their steps, but names {ranks!r}."
    if len(set(steps.values())) != 1:
        told = ", ".join(f"rank {rank} at step {step}" for rank, step in sorted(steps.items()))
        return f"The ranks are not at the same step: {told}."
    return None


def _count(doc: Any, name: str) -> int | None:
    """Return a whole number of a server's document, None for anything else."""
    value = doc.get(name) if isinstance(doc, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
