# SPDX-License-Identifier: Apache-2.0
"""The measurements: decode waves, prefill, reuse of prompts, and a prompt that comes while others decode.

Definitions stand in docs/performance.md. Every measurement is a list of rows, plain dictionaries of named numbers.
"""

from __future__ import annotations

import concurrent.futures
import statistics
import threading
from collections.abc import Sequence
from typing import Any

from sparkpair.bench.client import Client, Reply
from sparkpair.bench.prompts import decode_prompt, long_prompt
from sparkpair.errors import UserError

Row = dict[str, Any]

# A model that answers in one word is asked for a few tokens, and one may be all that comes.
SHORT_REPLY = 8
OVERHEAD_WORDS = 4
OVERHEAD_SAMPLES = 3
# Of a first token's time, at most this share is taken for overhead.
MOST_OVERHEAD = 0.8


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _forced(tokens: int) -> Row:
    """Fields that make a reply exactly that long, greedy, without thinking."""
    return {
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
        "stop": [],
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def _short(client: Client, text: str) -> Reply:
    return client.chat(_user(text), **(_forced(SHORT_REPLY) | {"min_tokens": 1}))


def decode(client: Client, kind: str, streams: int, tokens: int) -> Row:
    """One wave: `streams` requests fired together."""
    start = threading.Barrier(streams)

    def ask(stream: int) -> Reply:
        start.wait()
        return client.chat(_user(decode_prompt(kind, stream, tokens)), **_forced(tokens))

    before = client.get("/health")
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        replies = list(pool.map(ask, range(streams)))
    after = client.get("/health")
    span = max(reply.arrivals[-1] for reply in replies) - min(reply.arrivals[0] for reply in replies)
    whole = max(reply.arrivals[-1] for reply in replies) - min(reply.sent for reply in replies)
    produced = sum(reply.tokens for reply in replies)
    return {
        "kind": kind,
        "streams": streams,
        "tokens": produced,
        "aggregate_tok_s": (produced - streams) / span if span > 0 else 0.0,
        "end_to_end_tok_s": produced / whole,
        "stream_tok_s": statistics.median(reply.rate for reply in replies),
        "first_token_ms": 1000 * statistics.median(reply.first_s for reply in replies),
        "tokens_a_round": _tokens_a_round(before, after, produced),
        "replies": [reply.digest[:16] for reply in replies],
    }


def _tokens_a_round(before: Row, after: Row, produced: int) -> float | None:
    """Tokens of all streams a decode round, where the server counts rounds."""
    rounds = after.get("rounds_total", 0) - before.get("rounds_total", 0)
    return produced / rounds if rounds else None


def prefill(client: Client, words: Sequence[int]) -> list[Row]:
    """Cold prompts, one at a time."""
    overhead = statistics.median(_short(client, long_prompt(OVERHEAD_WORDS)).first_s for _ in range(OVERHEAD_SAMPLES))
    rows = []
    for count in words:
        reply = _short(client, long_prompt(count))
        removed = min(overhead, MOST_OVERHEAD * reply.first_s)
        rows.append(
            {
                "prompt_tokens": reply.prompt_tokens,
                "cached_tokens": reply.cached_tokens,
                "first_token_s": reply.first_s,
                "tok_s": reply.prompt_tokens / reply.first_s,
                "net_tok_s": (reply.prompt_tokens - reply.cached_tokens) / (reply.first_s - removed),
            }
        )
    return rows


def reuse(client: Client, words: int) -> list[Row]:
    """A prompt that is new, the same again, and a new question behind the same system prompt."""
    text = long_prompt(words)
    rows = [_reused("new", _short(client, text)), _reused("the same again", _short(client, text))]
    system = {"role": "system", "content": long_prompt(words, question="Answer in one word.")}
    for name, question in (("new system prompt", "What is the first word?"), ("its next question", "And the last?")):
        reply = client.chat([system, *_user(question)], **(_forced(SHORT_REPLY) | {"min_tokens": 1}))
        rows.append(_reused(name, reply))
    for fresh, again in ((rows[0], rows[1]), (rows[2], rows[3])):
        fresh["times_sooner"], again["times_sooner"] = 1.0, fresh["first_token_s"] / again["first_token_s"]
    return rows


def _reused(name: str, reply: Reply) -> Row:
    return {
        "prompt": name,
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
        "first_token_s": reply.first_s,
    }


def fill(client: Client, words: int, streams: int, tokens: int) -> Row:
    """A long prompt that comes when `streams` replies have all begun; their gaps from then to its first token."""
    begun = threading.Barrier(streams + 1)

    def talk(stream: int) -> Reply:
        first = [True]

        def on_event() -> None:
            if first:
                first.clear()
                begun.wait()

        return client.chat(_user(decode_prompt("prose", stream, tokens)), on_event, **_forced(tokens))

    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        talking = [pool.submit(talk, stream) for stream in range(streams)]
        begun.wait()
        reply = _short(client, long_prompt(words))
        replies = [one.result() for one in talking]
    since, until = reply.sent, reply.arrivals[0]
    gaps, received = [], 0
    for other in replies:
        for earlier, later in zip(other.arrivals, other.arrivals[1:], strict=False):
            if since < later and earlier < until:
                gaps.append(later - earlier)
        received += sum(since < arrival <= until for arrival in other.arrivals)
    if len(gaps) < 2:
        raise UserError("the replies had ended before the long prompt was read: give --tokens a larger number")
    ordered = sorted(gaps)
    return {
        "streams": streams,
        "prompt_tokens": reply.prompt_tokens,
        "gap_p50_ms": 1000 * statistics.median(ordered),
        "gap_p90_ms": 1000 * ordered[int(0.9 * (len(ordered) - 1))],
        "gap_max_ms": 1000 * ordered[-1],
        "events_received": received,
        "first_token_s": reply.first_s,
        "ended_before": sum(other.arrivals[-1] < until for other in replies),
    }
