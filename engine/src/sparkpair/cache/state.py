# SPDX-License-Identifier: Apache-2.0
"""The state of one sequence on one rank: latent rows and pooled keys per DSA layer, fixed states per KDA layer.

Prompt rows become part of the state at once. Decode rows form a *window* whose later rows may be drafts: they wait
beside the state until `SequenceState.commit` says how many of them stay. What stays is then in the state as if
nothing else had been computed.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.cache.rows import Rows
from sparkpair.model.config import TextConfig


@dataclasses.dataclass(frozen=True, slots=True)
class KdaWindow:
    """A decode window of a KDA layer: inputs of convolution and recurrence, and the memory after all its rows."""

    projected: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor
    memory: Tensor


@dataclasses.dataclass(slots=True)
class KdaState:
    """Convolution tail [K-1, 3C] (q, k and v side by side, before the convolution) and memory [H, D, D] in fp32."""

    tail: Tensor
    memory: Tensor
    window: KdaWindow | None = None

    def commit(self, kept: int) -> None:
        """Take the first `kept` rows of the window into the state, by replaying the recurrence where some go."""
        window, self.window = self.window, None
        if window is None:
            return
        self.tail = torch.cat([self.tail, window.projected[:kept]])[kept:]
        if kept == window.k.shape[0]:
            self.memory = window.memory
        else:
            # The query only reads; any query of the right shape replays the same memory.
            rows = (window.k, window.k, window.v, window.decay, window.beta)
            q, k, v, decay, beta = (row[:kept] for row in rows)
            _, self.memory = kernels.kda_recurrent(q, k, v, decay, beta, self.memory)

    def snapshot(self) -> KdaState:
        """The state as it is now. Memory and tail are replaced and never written in place, so they are shared."""
        return KdaState(self.tail, self.memory)


@dataclasses.dataclass(slots=True)
class DsaState:
    """Latent rows of every token, pooled index keys of every complete pool, raw keys and gates of the open pool.

    During a window `open_keys` and `open_gates` stay as they were before it; its own keys and gates wait in `window`,
    with the size of a pool.
    """

    latents: Rows
    pooled: Rows
    open_keys: Tensor
    open_gates: Tensor
    window: tuple[Tensor, Tensor, int] | None = None

    def commit(self, kept: int) -> None:
        """Keep the first `kept` rows of the window."""
        window, self.window = self.window, None
        if window is None:
            return
        keys, gates, kpool = window
        dropped = keys.shape[0] - kept
        open_before = self.open_keys.shape[0]
        pools_lost = (open_before + keys.shape[0]) // kpool - (open_before + kept) // kpool
        self.latents.truncate(self.latents.length - dropped)
        self.pooled.truncate(self.pooled.length - pools_lost)
        whole = (open_before + kept) // kpool * kpool
        self.open_keys = torch.cat([self.open_keys, keys[:kept]])[whole:].clone()
        self.open_gates = torch.cat([self.open_gates, gates[:kept]])[whole:].clone()

    def snapshot(self) -> DsaState:
        """The state as it is now; its rows share the buffer for as long as nobody writes behind them."""
        return DsaState(self.latents.share(), self.pooled.share(), self.open_keys, self.open_gates)


LayerState = KdaState | DsaState


class DraftState(Protocol):
    """What a drafter keeps of a sequence."""

    def snapshot(self) -> DraftState:
        """The state as it is now; whoever continues either of the two leaves the other as it is."""


class SequenceState:
    """All layers' state of one sequence; `position` tokens have been absorbed.

    `window` is the number of decode rows that wait for `commit`. `draft` is the drafter's, where there is one: it waits
    for orders of its own.
    """

    def __init__(self, layers: list[LayerState], position: int = 0, draft: DraftState | None = None) -> None:
        self.layers = layers
        self.position = position
        self.draft = draft
        self.window = 0

    def commit(self, kept: int) -> None:
        """Take the first `kept` rows of the waiting window into the state and forget the rest."""
        if not self.window:
            return
        for layer in self.layers:
            layer.commit(kept)
        self.position += kept
        self.window = 0

    def snapshot(self) -> SequenceState:
        """The state as it is now, without a window; whoever continues either of the two leaves the other as it is."""
        draft = None if self.draft is None else self.draft.snapshot()
        return SequenceState([layer.snapshot() for layer in self.layers], self.position, draft)


def new_state(config: TextConfig, *, kda_heads: int, dtype: torch.dtype, device: torch.device) -> SequenceState:
    """The empty state of a sequence on a rank that holds `kda_heads` of the linear-attention heads."""
    width = config.linear_head_dim
    layers: list[LayerState] = []
    for kind in config.attention:
        if kind == "kda":
            channels = 3 * kda_heads * width
            layers.append(
                KdaState(
                    tail=torch.zeros(config.conv_kernel - 1, channels, dtype=dtype, device=device),
                    memory=torch.zeros(kda_heads, width, width, dtype=torch.float32, device=device),
                )
            )
        else:
            empty = torch.empty(0, config.index_head_dim, dtype=dtype, device=device)
            layers.append(
                DsaState(
                    latents=Rows(config.kv_lora_rank, dtype, device),
                    pooled=Rows(config.index_head_dim, dtype, device),
                    open_keys=empty,
                    open_gates=empty,
                )
            )
    return SequenceState(layers)


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Rows of a forward pass that belong to one sequence.

    `rows` is a slice of the batch; the first of them stands at `state.position`. `decode` rows run the serial form of
    linear attention, one token after the other, and wait for a commit; prompt rows run the chunked form on the 64-token
    position grid.
    """

    rows: slice
    state: SequenceState
    decode: bool

    def advance(self) -> None:
        """After the last layer: prompt rows count as absorbed, decode rows wait for a commit."""
        count = self.rows.stop - self.rows.start
        if self.decode:
            self.state.window = count
        else:
            self.state.position += count
