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
from sparkpair.cache.pool import KeptRows, Place, PlacedRows, RowPool
from sparkpair.grid import GRID
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
        self.tail = torch.cat([self.tail, window.projected[:kept]])[kept:].clone()
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

    def keep(self, token: int) -> KeptLayer:
        """What `resume` needs; all of it is in the state's own memory."""
        return KeptKda(self.snapshot())


@dataclasses.dataclass(frozen=True, slots=True)
class KeptKda:
    """A KDA layer of a kept state."""

    state: KdaState

    def resume(self, place: Place) -> KdaState:
        """The layer's state as it was."""
        return self.state.snapshot()


@dataclasses.dataclass(slots=True)
class DsaState:
    """Latent rows of every token, pooled index keys of every complete pool, raw keys and gates of the open pool.

    During a window `open_keys` and `open_gates` stay as they were before it; its own keys and gates wait in `window`,
    with the size of a pool.
    """

    latents: PlacedRows
    pooled: PlacedRows
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

    def keep(self, token: int) -> KeptLayer:
        """What `resume` needs: a copy of the rows from `token` on. Those before stay where they are."""
        return KeptDsa(self.latents.keep(token), self.pooled.keep(token), self.open)

    @property
    def open(self) -> tuple[Tensor, Tensor]:
        """Keys and gates of the open pool. They are replaced and never written in place."""
        return self.open_keys, self.open_gates


@dataclasses.dataclass(frozen=True, slots=True)
class KeptDsa:
    """A DSA layer of a kept state."""

    latents: KeptRows
    pooled: KeptRows
    open: tuple[Tensor, Tensor]

    def resume(self, place: Place) -> DsaState:
        """The layer's state as it was, in `place`, which has the rows but for the last."""
        return DsaState(self.latents.resume(place), self.pooled.resume(place), *self.open)


LayerState = KdaState | DsaState


class KeptLayer(Protocol):
    """A layer of a kept state."""

    def resume(self, place: Place) -> LayerState:
        """The layer's state as it was, with its rows in `place`."""


class KeptDraft(Protocol):
    """A drafter's part of a kept state."""

    def resume(self, place: Place) -> DraftState:
        """The drafter's state as it was, with its rows in `place`."""


class DraftState(Protocol):
    """What a drafter keeps of a sequence."""

    def keep(self, token: int) -> KeptDraft:
        """What is needed to resume; rows in the pool before `token` stay where they are."""


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

    def keep(self, token: int | None = None) -> KeptState:
        """The state as it is now, without a window, for sequences that continue it later.

        Rows before `token` stay in the pool: those of the whole blocks, unless told otherwise.
        """
        token = self.position // GRID * GRID if token is None else token
        draft = None if self.draft is None else self.draft.keep(token)
        return KeptState([layer.keep(token) for layer in self.layers], self.position, draft)


@dataclasses.dataclass(frozen=True, slots=True)
class KeptState:
    """A sequence's state at `position`. The pool has the rows of its whole blocks; the rest it holds itself."""

    layers: list[KeptLayer]
    position: int
    draft: KeptDraft | None

    def resume(self, place: Place) -> SequenceState:
        """A sequence that continues from here in `place`, where the rows of the whole blocks are."""
        draft = None if self.draft is None else self.draft.resume(place)
        return SequenceState([layer.resume(place) for layer in self.layers], self.position, draft)


def new_state(config: TextConfig, *, kda_heads: int, dtype: torch.dtype, pool: RowPool, place: Place) -> SequenceState:
    """The empty state of a sequence, its rows in `place`, on a rank that holds `kda_heads` of the KDA heads."""
    width = config.linear_head_dim
    layers: list[LayerState] = []
    for index, kind in enumerate(config.attention):
        if kind == "kda":
            channels = 3 * kda_heads * width
            layers.append(
                KdaState(
                    tail=torch.zeros(config.conv_kernel - 1, channels, dtype=dtype, device=pool.device),
                    memory=torch.zeros(kda_heads, width, width, dtype=torch.float32, device=pool.device),
                )
            )
        else:
            layers.append(empty_dsa(config, index, dtype, pool, place))
    return SequenceState(layers)


def empty_dsa(config: TextConfig, layer: int, dtype: torch.dtype, pool: RowPool, place: Place) -> DsaState:
    """The empty state of a DSA layer, with its rows in `place`."""
    empty = torch.empty(0, config.index_head_dim, dtype=dtype, device=pool.device)
    return DsaState(*pool.rows(layer, place), empty, empty)


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
