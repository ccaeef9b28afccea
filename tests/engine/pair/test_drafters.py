# SPDX-License-Identifier: Apache-2.0
"""Two real ranks that draft: both guess the same tokens, and a reply is the one without drafts."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import pathlib
from typing import Any

import pytest
from sparkpair.checkpoint.miniature import write_miniature

from tests.engine.agreeing import weaken, write_agreeing_drafter
from tests.engine.pair.ranks import LOOPBACK, World, running

pytestmark = pytest.mark.pair


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("pair") / "agreeing"
    write_miniature(directory, seed=1, overrides={})
    weaken(directory, strength=0.1)
    write_agreeing_drafter(directory.parent / "drafter", directory)
    return directory


def exchange(world: World, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    connection = http.client.HTTPConnection(LOOPBACK, world.port, timeout=60)
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def bodies() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for index, temperature in enumerate((0.0, 0.7, 1.0)):
        prompt = list(range(100 + index, 100 + index + 70 * (index + 1)))
        made.append({"prompt": prompt, "max_tokens": 24, "temperature": temperature, "seed": index, "top_p": 0.9})
    return made


@pytest.mark.parametrize(("drafter", "policy"), [("mtp", "3"), ("drafter", "fnc7:0.2")])
def test_two_ranks_draft_alike_and_reply_as_without_drafts(agreeing: pathlib.Path, drafter: str, policy: str) -> None:
    named = str(agreeing.parent / drafter) if drafter == "drafter" else drafter
    with running(agreeing, 2, "--parallel", "3", "--drafter", named, "--draft-policy", policy) as world:
        world.start_all()

        figures: list[tuple[int, int]] = []

        def ask(body: dict[str, Any]) -> str:
            reply = exchange(world, "/v1/completions", body)
            figures.append((reply["sparkpair"]["drafted_tokens"], reply["sparkpair"]["accepted_tokens"]))
            return str(reply["choices"][0]["text"])

        serial = [ask({**body, "draft": False}) for body in bodies()]
        assert exchange(world, "/health")["drafted_total"] == 0
        assert figures == [(0, 0)] * len(serial)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            # The prompts resume from states that serial requests left, the head's rows with them.
            drafted = list(pool.map(ask, bodies()))
        health = exchange(world, "/health")
        assert drafted == serial
        totals = (health["drafted_total"], health["accepted_total"])
        assert tuple(map(sum, zip(*figures, strict=True))) == totals
        assert 0.1 < health["accepted_total"] / health["drafted_total"] < 0.95
        assert health["cached_tokens_total"] > 0
