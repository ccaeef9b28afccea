# SPDX-License-Identifier: Apache-2.0
"""The weights of one rank: reads only the rank's part of each tensor and brings it to the form it is held in."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import torch
from torch import Tensor

from sparkpair import kernels
from sparkpair.checkpoint import dense, exl3
from sparkpair.checkpoint.forms import WeightForms
from sparkpair.checkpoint.safetensors import Checkpoint, TensorEntry
from sparkpair.checkpoint.split import rank_part
from sparkpair.kernels.weights import FP8_COLUMNS, Q4_COLUMNS, Exl3Weight, Weight
from sparkpair.model.config import TextConfig

# Tensors that stay fp32 whatever the compute dtype: small, and the model is sensitive to their rounding.
_FP32 = re.compile(
    r"(e_score_correction_bias|mlp\.gate\.weight|conv1d\.weight|dt_bias|A_log|hc_(attn|ffn)_(base|scale))$"
)

# The scales of a block-scaled fp8 matrix are a tensor of this suffix beside it.
_SCALE = "_scale_inv"

Progress = Callable[[int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How one rank holds a checkpoint: its place in the world, the compute dtype, and the forms of its weights."""

    world: int
    rank: int
    dtype: torch.dtype
    forms: WeightForms = dataclasses.field(default_factory=WeightForms)

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype of a tensor that is held as a plain one."""
        return torch.float32 if _FP32.search(name) else self.dtype


def _parts(checkpoint: Checkpoint, config: TextConfig, layout: Layout, name: str) -> list[slice]:
    """The rank's part of tensor `name` along every axis."""
    shape = checkpoint.entry(name).shape
    parts = [slice(0, width) for width in shape]
    found = rank_part(config, name, shape, layout.world, layout.rank)
    if found is not None:
        parts[found[0]] = found[1]
    return parts


def _read_parts(checkpoint: Checkpoint, config: TextConfig, layout: Layout, name: str) -> list[slice]:
    """The part that is read: wider than the rank's own where a group of columns straddles two ranks."""
    parts = _parts(checkpoint, config, layout, name)
    form = layout.forms.of(name)
    if form != "bf16":
        unit = FP8_COLUMNS if form == "fp8" else Q4_COLUMNS
        parts[1] = dense.widened(parts[1], checkpoint.entry(name).shape[1], unit)
    return parts


class RankWeights:
    """Reads tensors of one rank onto `device`; `progress` gets the bytes read so far after each tensor.

    `bytes_read` counts what came from disk, `bytes_held` what was handed out.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: TextConfig,
        *,
        world: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        forms: WeightForms | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self.layout = Layout(world, rank, dtype, forms or WeightForms())
        self.dtype = dtype
        self.device = device
        self.bytes_read = 0
        self.bytes_held = 0
        self._progress = progress

    def take(self, name: str) -> Tensor:
        """This rank's part of tensor `name` as a plain tensor. Raises UserError when the checkpoint lacks it."""
        parts = _parts(self.checkpoint, self.config, self.layout, name)
        tensor = self._read(name, parts).to(dtype=self.layout.dtype_of(name), copy=True).contiguous()
        self._count(tensor)
        return tensor

    def take_linear(self, prefix: str) -> Weight:
        """This rank's part of the linear map `prefix` (its name without `.weight`), in the form that was chosen.

        Raises UserError when the checkpoint lacks it or stores it in a form this engine cannot read.
        """
        if f"{prefix}.trellis" in self.checkpoint:
            return self._take_exl3(prefix)
        name = f"{prefix}.weight"
        form = self.layout.forms.of(name)
        if form == "bf16":
            return self.take(name)
        read = _read_parts(self.checkpoint, self.config, self.layout, name)
        own = _parts(self.checkpoint, self.config, self.layout, name)[1]
        keep = slice(own.start - read[1].start, own.stop - read[1].start)
        quantise = dense.quantise_fp8 if form == "fp8" else dense.quantise_q4
        weight = quantise(self._read(name, read), keep)
        self._count(weight)
        return weight

    def _take_exl3(self, prefix: str) -> Weight:
        exl3.check_exl3(self.checkpoint, prefix)
        trellis, suh, svh = (
            self._read(name, _parts(self.checkpoint, self.config, self.layout, name))
            for name in (f"{prefix}.{leaf}" for leaf in ("trellis", "suh", "svh"))
        )
        weight: Weight
        if self.layout.forms.experts == "packed":
            # A copy of its own: what was read may be a view of the mapped file.
            weight = Exl3Weight(trellis.clone(), suh.clone(), svh.clone())
        else:
            weight = kernels.exl3_effective(Exl3Weight(trellis, suh, svh)).to(self.dtype)
        self._count(weight)
        return weight

    def _read(self, name: str, parts: list[slice]) -> Tensor:
        """A part of a stored tensor on the device; block-scaled fp8 as fp32, everything else as stored."""
        tensor = self._stored(name, parts)
        if name + _SCALE not in self.checkpoint:
            return tensor
        scales = self._stored(name + _SCALE, [dense.scale_part(part) for part in parts])
        return dense.unscale_blocks(tensor, scales, parts[0].start, parts[1].start)

    def _stored(self, name: str, parts: list[slice]) -> Tensor:
        tensor = self.checkpoint.read(name, parts)
        self.bytes_read += tensor.nbytes
        return tensor.to(self.device)

    def _count(self, weight: Weight) -> None:
        self.bytes_held += weight.nbytes
        if self._progress is not None:
            self._progress(self.bytes_read)


@dataclasses.dataclass(frozen=True, slots=True)
class RankBytes:
    """Bytes a rank reads from disk, and bytes it then holds in memory."""

    stored: int
    held: int


def rank_bytes(checkpoint: Checkpoint, config: TextConfig, layout: Layout, wanted: Callable[[str], bool]) -> RankBytes:
    """What one rank reads and holds of the tensors that `wanted` accepts, from the headers alone."""
    stored = held = 0
    for name in checkpoint.entries:
        if wanted(name):
            stored += _stored_bytes(checkpoint, config, layout, name)
            held += _held_bytes(checkpoint, config, layout, name)
    return RankBytes(stored, held)


def _elements(parts: list[slice]) -> int:
    return math.prod(part.stop - part.start for part in parts)


def _stored_bytes(checkpoint: Checkpoint, config: TextConfig, layout: Layout, name: str) -> int:
    if name.endswith(_SCALE):
        parts = [dense.scale_part(part) for part in _read_parts(checkpoint, config, layout, name.removesuffix(_SCALE))]
    elif name.endswith(".mcg"):
        return 0  # looked at, not loaded
    else:
        parts = _read_parts(checkpoint, config, layout, name)
    return _elements(parts) * checkpoint.entry(name).element_bytes


def _held_bytes(checkpoint: Checkpoint, config: TextConfig, layout: Layout, name: str) -> int:
    entry = checkpoint.entry(name)
    if name.endswith((_SCALE, ".mcg")):
        return 0
    parts = _parts(checkpoint, config, layout, name)
    if exl3.is_exl3_part(name):
        if layout.forms.experts == "packed":
            return _elements(parts) * entry.element_bytes
        decoded = exl3.decoded_elements(_elements(parts), entry) if name.endswith(".trellis") else 0
        return decoded * layout.dtype.itemsize
    form = layout.forms.of(name)
    if form == "bf16":
        return _elements(parts) * layout.dtype_of(name).itemsize
    return (dense.fp8_bytes if form == "fp8" else dense.q4_bytes)(parts[0].stop - parts[0].start, parts[1])


def parameter_count(name: str, entry: TensorEntry) -> int:
    """Weights of the model that a stored tensor stands for; scales and signs of a quantised matrix are none."""
    if name.endswith(_SCALE):
        return 0
    if exl3.is_exl3_part(name):
        return exl3.decoded_elements(math.prod(entry.shape), entry) if name.endswith(".trellis") else 0
    return math.prod(entry.shape)
