# SPDX-License-Identifier: Apache-2.0
"""What the estimate promises is kept at every instant: an allocator that counts watches an engine under pressure."""

from __future__ import annotations

import asyncio
import pathlib
import random
import weakref
from typing import Any

import torch
from sparkpair.cache.forms import RowForm
from sparkpair.cache.keeper import PoolKeeper
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.checkpoint.rank_weights import Layout
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.comm.lockstep import Executed, Step, StepRunner
from sparkpair.drafting.policy import CopyDrafting
from sparkpair.engine import CHUNK_ROWS, EngineSettings, LeaderEngine
from sparkpair.grid import GRID
from sparkpair.logits import load_rank
from sparkpair.memory import GIB, PROCESS_BYTES, PoolSettings, plan_memory
from sparkpair.model.config import load_text_config
from sparkpair.request import GenerationRequest, SamplingParams
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.engine.devices import DEVICE
from tests.engine.test_exactness import collect

WINDOW = 2048


class CountingAllocator(TorchDispatchMode):
    """Counts the bytes of all memory that tensors have been made in since it was first entered."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self._known:
                    self._add(storage)
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        size, name = storage.nbytes(), storage._cdata
        self._known.add(name)
        self.alive += size
        self.peak = max(self.peak, self.alive)

        def freed() -> None:
            self._known.discard(name)
            self.alive -= size

        weakref.finalize(storage, freed)


class CountedStates(dict[int, Any]):
    """Kept states, which counts how many there were at once."""

    most = 0

    def __setitem__(self, name: int, state: Any) -> None:
        super().__setitem__(name, state)
        self.most = max(self.most, len(self))


class CountedRunner(StepRunner):
    """Executes steps under the counting allocator."""

    allocator: CountingAllocator

    def execute(self, step: Step, checksum: int, media_rows: Tensor | None = None) -> Executed:
        with self.allocator:
            return super().execute(step, checksum, media_rows)


def prompts() -> list[list[int]]:
    """Conversations that begin alike and take turns, longer in all than the pool."""
    choose = random.Random(3)
    head = [choose.randrange(1, 200) for _ in range(200)]
    made = [head + [conversation + 1] * 130 for conversation in range(4)]
    return [made[0], *made, *(prompt + [choose.randrange(1, 200) for _ in range(70)] for prompt in made)]


async def test_m04_an_engine_under_pressure_never_takes_more_than_the_estimate(tmp_path: pathlib.Path) -> None:
    # Rows that are decoded when they are read take most beside what is stored.
    kv: RowForm = "fp8"
    directory = tmp_path / "model"
    write_miniature(directory, seed=1, overrides={})
    layout = Layout(1, 0, torch.float32)
    settings = PoolSettings(parallel=3, window_rows=32, form=kv, cache_bytes=7 * 2**20, cache_entries=3)
    plan = plan_memory(
        Checkpoint(directory),
        load_text_config(directory),
        layout,
        settings,
        chunk_rows=CHUNK_ROWS,
        available=8 * GIB,
        reserve_gib=0.0,
    )
    pool_plan = plan.pool(WINDOW)
    model = load_rank(directory, SoloGroup(), DEVICE)
    allocator = CountingAllocator()
    with allocator:
        pool = model.new_pool(pool_plan.tokens, kv)
    assert allocator.alive <= pool_plan.tokens * plan.row_bytes
    runner = CountedRunner(model, pool)
    runner.allocator = allocator
    runner._kept = states = CountedStates()
    served = LeaderEngine(
        runner,
        None,
        EngineSettings(context=WINDOW, lanes=3, window_rows=32, fill_budget_s=0.0),
        CopyDrafting(15),
        PoolKeeper(pool_plan.tokens, most_kept=pool_plan.entries, unit=GRID),
        world=1,
        on_death=lambda error: None,
    )
    served.start()
    assert pool_plan.tokens < sum(map(len, prompts()))
    asked = [GenerationRequest(tuple(ids), 10, SamplingParams(temperature=0.0)) for ids in prompts()]
    await asyncio.gather(*(collect(served, request) for request in asked))
    resumed = served.health().cached_tokens_total
    served.stop()
    assert resumed > 0
    # What stays is decided before anything is copied: not one state more than that, at no instant.
    assert states.most == pool_plan.entries
    promised = plan.needed(WINDOW) - PROCESS_BYTES - plan.weights
    assert allocator.peak <= promised
    # Behind the last step there is the pool, and states of what is kept and of what ran last.
    left = allocator.alive - pool_plan.tokens * plan.row_bytes
    assert left <= pool_plan.entries * plan.entry_bytes + settings.parallel * plan.stream_bytes
