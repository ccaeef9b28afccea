# SPDX-License-Identifier: Apache-2.0
"""A rank that is frozen in a step: the others show where they are and name it; they wait for it, or end if asked to."""

from __future__ import annotations

import json
import pathlib
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from openai import APIError, OpenAI, Stream
from openai.types import Completion

from tests.engine.devices import DEVICE
from tests.engine.pair.ranks import World, running

pytestmark = pytest.mark.pair

# The first step on a GPU takes seconds: the ranks find each other's GPUs, kernels are loaded.
LIMIT_S = 1.5 if DEVICE.type == "cpu" else 10.0
LIMIT = ("--stuck-after", f"{LIMIT_S}")


def client(world: World) -> OpenAI:
    return OpenAI(base_url=f"{world.url}/v1", api_key="unused", max_retries=0)


def freeze_in_a_step(world: World, rank: int, witness: int, stream: Iterator[Completion]) -> list[Completion]:
    """Stop a rank until the witness finds itself in a step with it; between two steps nobody waits for it.

    Returns what came of the stream meanwhile.
    """
    process = world.ranks[rank].process
    came: list[Completion] = []
    for _ in range(20):
        process.send_signal(signal.SIGSTOP)
        if world.ranks[witness].line_within(f"stuck: rank {witness} ", LIMIT_S + 3) is not None:
            return came
        process.send_signal(signal.SIGCONT)
        came.append(next(stream))
    raise AssertionError("no step in twenty attempts")


def test_o10_a_frozen_rank_is_named_with_all_stacks_and_nothing_is_lost_when_it_goes_on(
    miniature: pathlib.Path,
) -> None:
    with running(miniature, 3, *LIMIT) as world, client(world) as api:
        world.start_all()

        def reply() -> Stream[Completion]:
            return api.completions.create(
                model="miniature",
                prompt="On",
                max_tokens=40,
                stream=True,
                temperature=0,
                extra_body={"ignore_eos": True},
            )

        expected = "".join(chunk.choices[0].text for chunk in reply())
        stream = iter(reply())
        found = [next(stream)]
        found += freeze_in_a_step(world, 2, 1, stream)
        world.ranks[0].wait_for("stuck: rank 0 has been in step")
        assert world.ranks[0].wait_for(" does not answer: step ").startswith("warning: rank 2 on ")
        for witness in (0, 1):
            world.ranks[witness].wait_for("comm/group.py")
            assert "Thread 0x" in world.ranks[witness].log
        with urllib.request.urlopen(f"{world.url}/health") as answer:
            health = json.load(answer)
        assert health["ok"] is True
        assert health["iteration_s"] > LIMIT_S
        world.ranks[2].process.send_signal(signal.SIGCONT)
        found.extend(stream)
        assert "".join(chunk.choices[0].text for chunk in found) == expected
        world.stop(0)
        assert [world.ranks[rank].exit_code() for rank in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("victim", [0, 1])
def test_o10_with_the_exit_a_frozen_rank_ends_all_by_its_name(miniature: pathlib.Path, victim: int) -> None:
    other = 1 - victim
    with running(miniature, 2, *LIMIT, "--stuck-exit") as world, client(world) as api:
        world.start_all()
        stream = iter(
            api.completions.create(
                model="miniature", prompt="On", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
            )
        )
        next(stream)
        freeze_in_a_step(world, victim, other, stream)
        assert world.ranks[other].exit_code() == 4
        line = world.ranks[other].wait_for("fatal: ")
        assert line.startswith(f"fatal: rank {victim} ")
        assert "does not answer: step " in line
        if victim == 1:
            with pytest.raises(APIError, match=r"rank 1 on .* does not answer"):
                list(stream)
        world.ranks[victim].process.send_signal(signal.SIGCONT)
        assert world.ranks[victim].exit_code() == 4
