# SPDX-License-Identifier: Apache-2.0
"""The startup estimate: what a rank will need, what there is, the largest window that fits, and the pool.

Everything is decided from headers and configuration before any weight is loaded, so a window that does not fit is
refused in the first second with the largest that does. The window is placed first; kept prompts and further requests
then get what is left, at most what the settings allow for them.
"""

from __future__ import annotations

import dataclasses

from sparkpair.cache.extents import UNIT, units
from sparkpair.cache.forms import RowForm
from sparkpair.cache.pool import token_bytes
from sparkpair.checkpoint.names import is_backbone
from sparkpair.checkpoint.rank_weights import Layout, rank_bytes
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import share
from sparkpair.errors import DoesNotFit, UserError
from sparkpair.grid import GRID
from sparkpair.model.config import TextConfig

MIB = 2**20
GIB = 2**30

# The interpreter with torch loaded, before any weight (measured: 0.3 GiB resident on Linux x86-64, CPU build).
PROCESS_BYTES = 320 * MIB

# Windows are offered in multiples of this many tokens.
WINDOW_STEP = 64

# Live copies of one prompt chunk's widest intermediate rows while a layer runs.
LIVE_COPIES = 8

# Scoring, masking and sorting the pooled keys for a block of queries takes at most as much as fp32 numbers of this many
# queries for every pooled key: 64 queries, each with scores of all heads so far, of one head and as masked, keys in
# fp32, sorted values and indices.
SCRATCH_QUERIES = 512

# What a kept state holds beside its fixed states: rows behind its last whole block, keys of an open pool.
ENTRY_ROOM = 2 * MIB


@dataclasses.dataclass(frozen=True, slots=True)
class DrafterNeed:
    """What a drafter takes of a rank: bytes of weights as stored and as held, layers of the pool, and bytes for every
    running request and for every kept state."""

    stored: int = 0
    held: int = 0
    pool_layers: int = 0
    per_stream: int = 0
    per_entry: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class PoolPlan:
    """The pool: `tokens` in all, and at most `entries` kept states."""

    tokens: int
    entries: int


@dataclasses.dataclass(frozen=True, slots=True)
class TowerNeed:
    """Bytes of rank 0 for pictures: the tower's weights as stored and as held, and what encoding and waiting take."""

    stored: int = 0
    held: int = 0
    workspace: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one rank. `fixed` is needed whatever the window and the pool are, running requests' states included.

    `row_bytes` are stored for every token of the pool and `scratch_bytes` used for it while prompts are read;
    `stream_bytes` are a running request's states, `entry_bytes` those of a kept one. `cache_bytes` and `cache_entries`
    are what the settings allow for the pool beyond the window.
    """

    stored_weights: int
    weights: int
    fixed: int
    row_bytes: int
    scratch_bytes: int
    stream_bytes: int
    entry_bytes: int
    parallel: int
    cache_bytes: int
    cache_entries: int
    budget: int

    @property
    def per_token(self) -> int:
        """Bytes for every token of the pool."""
        return self.row_bytes + self.scratch_bytes

    def least(self, window: int) -> int:
        """Bytes needed with a window of `window` tokens and nothing beyond it."""
        return self.fixed + self.per_token * units(window)

    def largest_window(self, limit: int) -> int:
        """The largest window up to `limit` that fits; 0 when none does."""
        if self.least(limit) <= self.budget:
            return limit
        room = (self.budget - self.fixed) // self.per_token
        window = room // UNIT * UNIT // WINDOW_STEP * WINDOW_STEP
        return max(0, min(window, limit))

    def pool(self, window: int) -> PoolPlan:
        """The pool with a window that fits: the window, and what settings and memory allow beyond it."""
        room = max(0, min(self.cache_bytes, self.budget - self.least(window)))
        entries = min(self.cache_entries, room // self.entry_bytes)
        extra = (room - entries * self.entry_bytes) // self.per_token
        return PoolPlan(max(units(window), (window + extra) // UNIT * UNIT), entries)

    def needed(self, window: int) -> int:
        """Bytes needed with this window and its pool."""
        pool = self.pool(window)
        return self.fixed + pool.entries * self.entry_bytes + pool.tokens * self.per_token


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


@dataclasses.dataclass(frozen=True, slots=True)
class PoolSettings:
    """What the settings say of requests and the pool: see the command line's flags of the same names."""

    parallel: int
    window_rows: int
    form: RowForm
    cache_bytes: int
    cache_entries: int


def plan_memory(
    checkpoint: Checkpoint,
    config: TextConfig,
    layout: Layout,
    pool: PoolSettings,
    *,
    chunk_rows: int,
    available: int,
    reserve_gib: float,
    drafter: DrafterNeed | None = None,
    tower: TowerNeed | None = None,
) -> MemoryPlan:
    """What a rank of `layout` needs, and its budget: `available` bytes less the reserve."""
    loaded = rank_bytes(checkpoint, config, layout, lambda name: is_backbone(config, name))
    drafts = drafter or DrafterNeed()
    pictures = tower or TowerNeed()
    held = loaded.held + drafts.held + pictures.held
    kda = share(config.linear_heads, layout.world, layout.rank)
    heads, width, size = kda.stop - kda.start, config.linear_head_dim, layout.dtype.itemsize
    memory = config.kda_layers * heads * width**2 * 4
    tails = config.kda_layers * (config.conv_kernel - 1) * 3 * heads * width * size
    open_pool = (config.dsa_layers + drafts.pool_layers) * 2 * (config.index_kpool - 1) * config.index_head_dim * size
    row = token_bytes(config, pool.form, config.dsa_layers + drafts.pool_layers)
    # A verify window leaves the states before it and those behind it.
    stream = 2 * memory + tails
    entry = stream // 2 + drafts.per_entry + ENTRY_ROOM
    exact = memory + tails + open_pool + GRID * row + drafts.per_entry
    widest = max(
        config.hc_mult * config.hidden_size,
        config.num_heads * (config.index_topk + config.index_kpool),
        config.experts_per_token * config.hidden_size,
        config.intermediate_size,
    )
    workspace = chunk_rows * widest * 4 * LIVE_COPIES + chunk_rows * config.vocab_size * 4 + pictures.workspace
    return MemoryPlan(
        stored_weights=loaded.stored + drafts.stored + pictures.stored,
        weights=held,
        fixed=PROCESS_BYTES + held + workspace + pool.parallel * (stream + open_pool + drafts.per_stream),
        row_bytes=row,
        scratch_bytes=(SCRATCH_QUERIES + pool.window_rows) * 4 // config.index_kpool,
        stream_bytes=stream,
        entry_bytes=max(entry, exact),
        parallel=pool.parallel,
        cache_bytes=pool.cache_bytes,
        cache_entries=pool.cache_entries,
        budget=available - int(reserve_gib * GIB),
    )


def settle_window(plan: MemoryPlan, asked: int, native: int) -> int:
    """The window to serve: `asked`, or the largest that fits when asked for 0.

    Raises DoesNotFit; the caller prints the largest fitting window where the deployment can read it.
    """
    window = asked or plan.largest_window(native)
    if window == 0 or plan.least(window) > plan.budget:
        raise DoesNotFit(
            f"a window of {asked or WINDOW_STEP} tokens needs {plan.least(asked or WINDOW_STEP) / GIB:.2f} GiB, "
            f"and {max(0, plan.budget) / GIB:.2f} GiB are free beyond the reserve. Lower --context, "
            "stop other programs, or lower --memory-reserve-gib."
        )
    return window


def estimate_line(plan: MemoryPlan, window: int) -> str:
    """The line of the startup estimate, as the deployment reads it."""
    requests = "1 request" if plan.parallel == 1 else f"{plan.parallel} requests"
    return (
        f"startup estimate {plan.needed(window) / GIB:.2f} GiB within {plan.budget / GIB:.2f} GiB: "
        f"window {window} tokens, {requests} at once"
    )


def pool_lines(plan: MemoryPlan, window: int) -> list[str]:
    """How the pool comes about, for a person to check."""
    pool = plan.pool(window)
    return [
        f"weights {plan.weights / GIB:.2f} GiB; states of a running request {plan.stream_bytes} bytes, "
        f"of a kept prompt {plan.entry_bytes} bytes",
        f"a token of the pool: {plan.row_bytes} bytes stored and {plan.scratch_bytes} bytes of scratch",
        f"pool {pool.tokens} tokens in {pool.tokens * plan.row_bytes / GIB:.2f} GiB of rows, "
        f"up to {pool.entries} kept prompts",
    ]
