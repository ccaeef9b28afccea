# SPDX-License-Identifier: Apache-2.0
"""The state of one sequence on one rank: latent rows and pooled keys per DSA layer, fixed states per KDA layer."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sparkpair.model.config import TextConfig

# Row buffers grow in steps of this many rows, so that growing is rare and the waste bounded.
GROWTH = 2048


class Rows:
    """A growing list of equal rows in one tensor, [length, width]."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.empty(0, width, dtype=dtype, device=device)
        self.length = 0

    def append(self, rows: Tensor) -> None:
        """Add `rows` [n, width] at the end."""
        needed = self.length + rows.shape[0]
        if needed > self._buffer.shape[0]:
            capacity = -(-needed // GROWTH) * GROWTH
            grown = self._buffer.new_empty(capacity, self._buffer.shape[1])
            grown[: self.length] = self._buffer[: self.length]
            self._buffer = grown
        self._buffer[self.length : needed] = rows
        self.length = needed

    @property
    def rows(self) -> Tensor:
        """The rows so far, [length, width]; a view."""
        return self._buffer[: self.length]


@dataclasses.dataclass(slots=True)
class KdaState:
    """Convolution tail [K-1, 3C] (q, k and v side by side, before the convolution) and memory [H, D, D] in fp32."""

    tail: Tensor
    memory: Tensor


@dataclasses.dataclass(slots=True)
class DsaState:
    """Latent rows of every token, pooled index keys of every complete pool, raw keys and gates of the open pool."""

    latents: Rows
    pooled: Rows
    open_keys: Tensor
    open_gates: Tensor


LayerState = KdaState | DsaState


class SequenceState:
    """All layers' state of one sequence; `position` tokens have been absorbed."""

    def __init__(self, config: TextConfig, *, kda_heads: int, dtype: torch.dtype, device: torch.device) -> None:
        self.position = 0
        self.layers: list[LayerState] = []
        width = config.linear_head_dim
        for kind in config.attention:
            if kind == "kda":
                channels = 3 * kda_heads * width
                self.layers.append(
                    KdaState(
                        tail=torch.zeros(config.conv_kernel - 1, channels, dtype=dtype, device=device),
                        memory=torch.zeros(kda_heads, width, width, dtype=torch.float32, device=device),
                    )
                )
            else:
                self.layers.append(
                    DsaState(
                        latents=Rows(config.kv_lora_rank, dtype, device),
                        pooled=Rows(config.index_head_dim, dtype, device),
                        open_keys=torch.empty(0, config.index_head_dim, dtype=dtype, device=device),
                        open_gates=torch.empty(0, config.index_head_dim, dtype=dtype, device=device),
                    )
                )


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Rows of a forward pass that belong to one sequence.

    `rows` is a slice of the batch; the first of them stands at `state.position`. `decode` rows run the serial form of
    linear attention, one token after the other; prompt rows run the chunked form on the 64-token position grid.
    """

    rows: slice
    state: SequenceState
    decode: bool
