# SPDX-License-Identifier: Apache-2.0
"""The startup estimate: what a rank will need, what there is, and the largest window that fits.

Everything is decided from headers and configuration before any weight is loaded, so a window that does not fit is
refused in the first second with the largest that does.
"""

from __future__ import annotations

import dataclasses

import torch

from sparkpair.cache.rows import GROWTH
from sparkpair.checkpoint.forms import WeightForms
from sparkpair.checkpoint.rank_weights import Layout, is_backbone, rank_bytes
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import share
from sparkpair.errors import DoesNotFit, UserError
from sparkpair.model.config import TextConfig

GIB = 2**30

# The interpreter with torch loaded, before any weight (measured: 0.3 GiB resident on Linux x86-64, CPU build).
PROCESS_BYTES = 320 * 2**20

# Windows are offered in multiples of this many tokens.
WINDOW_STEP = 64

# Live copies of one prompt chunk's widest intermediate rows while a layer runs.
LIVE_COPIES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class DrafterNeed:
    """Bytes of a rank for a drafter: weights as stored and as held, state for every token and for every sequence."""

    stored: int = 0
    held: int = 0
    per_token: int = 0
    per_stream: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TowerNeed:
    """Bytes of rank 0 for pictures: the tower's weights as stored and as held, and what encoding and waiting take."""

    stored: int = 0
    held: int = 0
    workspace: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one rank: `fixed` whatever the window is, `per_token` for every token of every request's window.

    `per_stream` is the part of a state that does not grow with its tokens; a kept prompt holds it too.
    """

    stored_weights: int
    weights: int
    fixed: int
    per_token: int
    per_stream: int
    parallel: int
    budget: int

    def needed(self, context: int) -> int:
        """Bytes needed with a window of `context` tokens."""
        rows = -(-context // GROWTH) * GROWTH
        return self.fixed + self.per_token * rows * self.parallel

    def largest_window(self, limit: int) -> int:
        """The largest window up to `limit` whose need is within the budget; 0 when none is."""
        if self.needed(limit) <= self.budget:
            return limit
        room = (self.budget - self.fixed) // (self.per_token * self.parallel)
        window = room // GROWTH * GROWTH // WINDOW_STEP * WINDOW_STEP
        return max(0, min(window, limit))


def mem_available() -> int:
    """MemAvailable of /proc/meminfo in bytes. Raises UserError where it cannot be read."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError as error:
        raise UserError(f"/proc/meminfo cannot be read ({error.strerror}), so free memory is unknown") from None
    raise UserError("/proc/meminfo has no MemAvailable line, so free memory is unknown")


def plan_memory(
    checkpoint: Checkpoint,
    config: TextConfig,
    *,
    world: int,
    rank: int,
    dtype: torch.dtype,
    parallel: int,
    chunk_rows: int,
    available: int,
    reserve_gib: float,
    cache_bytes: int,
    forms: WeightForms | None = None,
    drafter: DrafterNeed | None = None,
    tower: TowerNeed | None = None,
) -> MemoryPlan:
    """What rank `rank` of `world` needs, and its budget: `available` bytes less the reserve."""
    layout = Layout(world, rank, dtype, forms or WeightForms())
    loaded = rank_bytes(checkpoint, config, layout, lambda name: is_backbone(config, name))
    drafts = drafter or DrafterNeed()
    pictures = tower or TowerNeed()
    held = loaded.held + drafts.held + pictures.held
    kda = share(config.linear_heads, world, rank)
    kda_heads = kda.stop - kda.start
    memory = kda_heads * config.linear_head_dim**2 * 4
    tail = (config.conv_kernel - 1) * 3 * kda_heads * config.linear_head_dim * dtype.itemsize
    widest = max(
        config.hc_mult * config.hidden_size,
        config.num_heads * (config.index_topk + config.index_kpool),
        config.experts_per_token * config.hidden_size,
        config.intermediate_size,
    )
    workspace = chunk_rows * widest * 4 * LIVE_COPIES + chunk_rows * config.vocab_size * 4 + pictures.workspace
    per_stream = config.kda_layers * (memory + tail) + drafts.per_stream
    row = config.kv_lora_rank + config.index_head_dim / config.index_kpool
    return MemoryPlan(
        stored_weights=loaded.stored + drafts.stored + pictures.stored,
        weights=held,
        fixed=PROCESS_BYTES + held + workspace + parallel * per_stream + cache_bytes,
        per_token=int(config.dsa_layers * row * dtype.itemsize) + 1 + drafts.per_token,
        per_stream=per_stream,
        parallel=parallel,
        budget=available - int(reserve_gib * GIB),
    )


def settle_window(plan: MemoryPlan, asked: int, native: int) -> int:
    """The window to serve: `asked`, or the largest that fits when asked for 0.

    Raises DoesNotFit; the caller prints the largest fitting window where the deployment can read it.
    """
    window = asked or plan.largest_window(native)
    if window == 0 or plan.needed(window) > plan.budget:
        raise DoesNotFit(
            f"a window of {asked or WINDOW_STEP} tokens needs {plan.needed(asked or WINDOW_STEP) / GIB:.2f} GiB, "
            f"and {max(0, plan.budget) / GIB:.2f} GiB are free beyond the reserve. Lower --context, "
            "stop other programs, or lower --memory-reserve-gib."
        )
    return window


def estimate_line(plan: MemoryPlan, context: int) -> str:
    """The line of the startup estimate, as the deployment reads it."""
    requests = "1 request" if plan.parallel == 1 else f"{plan.parallel} requests"
    return (
        f"startup estimate {plan.needed(context) / GIB:.2f} GiB within {plan.budget / GIB:.2f} GiB: "
        f"window {context} tokens, {requests} at once"
    )
