# SPDX-License-Identifier: Apache-2.0
"""The engine of this repository on two machines: what a client sees while a rank is late, frozen or without power."""

from __future__ import annotations

import concurrent.futures
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.integration.site import HEAD, WORKER
from tests.pair import faults, layout, machines, plays
from tests.pair.machines import Machine

NAME = "sparkpair"
# The ranks know each other by the hosts' addresses on the LAN.
PORT = layout.LAN
LATE_MS = 500
UNANSWERED = f"rank 1 on {WORKER} does not answer"


@pytest.fixture(scope="module")
def pair() -> dict[str, Machine]:
    """The machines that run, with the pair serving: since the scenario's converge, or from now on."""
    found = machines.attach()
    try:
        health(found[HEAD])
    except OSError:
        plays.live()
    return found


def ask(machine: Machine, limit_s: float = 600) -> dict[str, Any]:
    """Ask for a few tokens; the same question has the same answer."""
    body = {"messages": [{"role": "user", "content": "Rivers?"}], "max_tokens": 4, "seed": 7}
    request = urllib.request.Request(
        f"{machine.api}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=limit_s) as reply:
        return dict(json.load(reply))


def told(machine: Machine, words: str) -> int:
    """How often a machine's rank has said something."""
    return machine.run(f"docker logs {NAME} 2>&1").stdout.count(words)


def said(reply: dict[str, Any]) -> Any:
    return reply["choices"][0]["message"]


def test_a_rank_that_is_late_or_stands_still_for_a_while_costs_time_and_no_token(pair: dict[str, Machine]) -> None:
    head, worker = pair[HEAD], pair[WORKER]
    usual = ask(head)
    wanted = said(usual)
    with faults.late(worker, PORT, LATE_MS):
        late = ask(head)
    assert said(late) == wanted
    # Every token has waited for the worker's part at least once.
    tokens = late["usage"]["completion_tokens"]
    assert late["sparkpair"]["decode_s"] > usual["sparkpair"]["decode_s"] + (tokens - 1) * LATE_MS / 1000
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with faults.freeze(worker, NAME):
            before = told(head, UNANSWERED)
            reply = pool.submit(ask, head)
            # It stands still until the head has said so by name, which is long before it would count as lost.
            machines.wait(lambda: told(head, UNANSWERED) > before, 120, lambda: "nobody was missed")
        assert said(reply.result()) == wanted


def test_power_that_fails_on_one_machine_ends_the_other_rank_by_name_and_the_next_run_ends_live(
    pair: dict[str, Machine],
) -> None:
    head, worker = pair[HEAD], pair[WORKER]
    wanted = said(ask(head))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        worker.power_cut()
        lost = pool.submit(ask, head)
        head.run(f"docker wait {NAME}", limit_s=600)
        with pytest.raises((urllib.error.HTTPError, urllib.error.URLError, ConnectionError)):
            lost.result()
        assert "rank 1" in head.run(f"docker logs {NAME} 2>&1 | grep fatal").stdout
        # Both come back, the one from a power cut, the other from a reboot.
        for done in (pool.submit(worker.power_on), pool.submit(head.reboot)):
            done.result()
    plays.live()
    assert said(ask(head)) == wanted
    saved = "zcat .local/state/sparkpair/spark-head/logs/*rank0*.gz | grep -c fatal"
    assert int(head.run(saved).stdout) >= 1


def health(machine: Machine) -> dict[str, Any]:
    with urllib.request.urlopen(f"{machine.api}/health", timeout=60) as reply:
        return dict(json.load(reply))
