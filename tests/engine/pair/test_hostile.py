# SPDX-License-Identifier: Apache-2.0
"""Hostile requests against two real ranks: none minds, rank 0's memory stays flat, replies stay what they were."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import httpx
import pytest

from tests.engine.api.test_hostile import CASES, CHAT, OF_LIMIT, Case, play, post
from tests.engine.pair.ranks import LOOPBACK, World, running

pytestmark = pytest.mark.pair

LIMIT = 96 * 2**20
OF_VOCABULARY = "completion {'prompt': [1535]}"
"""A token that the scripted engine's vocabulary lacks."""

HOSTILE = {
    **{name: case for name, case in CASES.items() if name not in {*OF_LIMIT, OF_VOCABULARY}},
    "length of the limit and one": Case(post(b"", Content_Length=str(LIMIT + 1)), (413,)),
}
WARM_UP = 3
ROUNDS = 6
MOST_GROWTH = 6 * 2**20
"""After the warm-up it is 1 MiB; were the bodies kept, it would be 11."""

ORDINARY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me of rivers."}],
    "max_tokens": 16,
    "seed": 3,
}


def resident_bytes(world: World) -> int:
    status = pathlib.Path(f"/proc/{world.ranks[0].process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def get_ready(world: World) -> None:
    """Have rank 0 load what it loads once, some seconds after it began to serve or for the first form."""
    httpx.post(world.url + CHAT, json=ORDINARY | {"guided_choice": ["yes", "no"]}, timeout=60).raise_for_status()


def ordinary(world: World) -> tuple[dict[str, Any], int]:
    found = httpx.post(world.url + CHAT, json=ORDINARY, timeout=60).json()
    return found["choices"][0], found["usage"]["total_tokens"]


async def test_a_pair_outlives_every_hostile_request_with_flat_memory_and_the_same_replies(
    miniature: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By default the allocator comes to keep what threads had in hand, which looks like a leak and is none.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(64 * 1024))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    with running(miniature, 2, "--context", "4096") as world:
        world.start_all()
        get_ready(world)
        before = ordinary(world)
        measured = []
        for _ in range(ROUNDS):
            for name, case in HOSTILE.items():
                await play(lambda: asyncio.open_connection(LOOPBACK, world.port), name, case)
            measured.append(resident_bytes(world))
        health = httpx.get(f"{world.url}/health").json()
        assert (health["requests_total"], health["requests_running"], health["ok"]) == (2, 0, True), "none was taken"
        assert ordinary(world) == before
        assert measured[-1] - measured[WARM_UP - 1] < MOST_GROWTH, json.dumps(measured)
        assert [rank.process.poll() for rank in world.ranks.values()] == [None, None]
        assert "Traceback" not in world.ranks[0].log
