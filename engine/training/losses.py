# SPDX-License-Identifier: Apache-2.0
"""What is made small: the next token's loss, the MTP head's, the indexers'. On a GPU captured once for every shape."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.encode import REPLY
from training.twin.batch import Batch
from training.twin.model import Twin
from training.twin.rows import fused

MTP_SHARE = 0.3
INDEX_SHARE = 1.0

# Passes before a capture, in which libraries set themselves up.
WARM_UP = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Losses:
    """Scalars: `total` is made small; `parts` are told, which are losses and shares of what was right by name."""

    total: Tensor
    parts: dict[str, Tensor]


class Measure(Protocol):
    """A pass over a batch; `everything` lets DSA layers attend to all that is visible."""

    def __call__(self, batch: Batch, *, everything: bool) -> Losses:
        """The losses of a batch."""


@fused
def weighted(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The mean loss of `logits` [N, vocab] with `weights` [N]."""
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1e-6)


def measure(twin: Twin, batch: Batch, *, everything: bool) -> Losses:
    """The losses of next tokens, of the MTP head, of the indexers, and the share of replies' tokens right."""
    passed = twin(batch, everything=everything)
    logits = twin.logits(passed.hidden)
    targets = torch.roll(batch.tokens, -1, dims=1)
    text = weighted(logits.flatten(0, 1), targets.flatten(), batch.weights.flatten())
    index = torch.stack(passed.lessons).sum() if passed.lessons else text.new_zeros(())
    mtp = text.new_zeros(())
    if twin.mtp is not None:
        rows = twin.guess(passed, batch, everything=everything)
        inside = batch.document == torch.roll(batch.document, -1, dims=1)
        weights = torch.roll(batch.weights, -1, dims=1) * inside
        weights[:, -1] = 0.0
        further = torch.roll(batch.tokens, -2, dims=1)
        mtp = weighted(twin.logits(rows).flatten(0, 1), further.flatten(), weights.flatten())
        lesson = twin.mtp.self_attn.lesson
        index = index + lesson if lesson is not None else index
    reply = batch.weights > REPLY
    right = ((logits.argmax(-1) == targets) & reply).sum() / reply.sum().clamp(min=1)
    total = text + MTP_SHARE * mtp + INDEX_SHARE * index
    return Losses(total, {"text": text, "mtp": mtp, "index": index, "right": right})


class Stepper:
    """Gradients of a model by what `measure` finds. On a GPU each shape's pass is captured as a graph the first time;
    without success it runs as it is written.
    """

    def __init__(self, model: nn.Module, measure: Measure, device: torch.device, *, capture: bool) -> None:
        self._model = model
        self._measure = measure
        self._device = device
        self._capture = capture and device.type == "cuda"
        self._captured: dict[tuple[object, ...], _Captured | None] = {}
        self._pool: object = None
        self.notes: list[str] = []

    def backward(self, batch: Batch, *, everything: bool) -> dict[str, Tensor]:
        """Leave the batch's gradients in the parameters, in place of those that were there; the parts to tell."""
        if self._capture:
            key = (batch.tokens.shape, batch.patches.shape, everything)
            if key not in self._captured:
                self._captured[key] = self._try(batch, everything)
            captured = self._captured[key]
            if captured is not None:
                return captured.run(batch)
        return run(self._model, self._measure, batch.to(self._device), everything)

    def _try(self, batch: Batch, everything: bool) -> _Captured | None:
        try:
            captured = _Captured(self._model, self._measure, batch.to(self._device), everything, self._pool)
        except RuntimeError as error:
            self.notes.append(f"no graph for {tuple(batch.tokens.shape)}: {error}")
            torch.cuda.synchronize(self._device)
            return None
        self._pool = captured.graph.pool()
        return captured


def run(model: nn.Module, measure: Measure, batch: Batch, everything: bool) -> dict[str, Tensor]:
    """A pass forth and back; gradients are set to zero before."""
    clear(model)
    losses = measure(batch, everything=everything)
    losses.total.backward()
    return {name: part.detach() for name, part in losses.parts.items()}


def clear(model: nn.Module) -> None:
    """Set all gradients to zero where they stand, as a captured pass writes to fixed places."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
        elif parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


class _Captured:
    """One shape's pass as a graph, with its own batch to write into."""

    def __init__(self, model: nn.Module, measure: Measure, batch: Batch, everything: bool, pool: object) -> None:
        self._batch = Batch(**{name: tensor.clone() for name, tensor in batch.tensors().items()})
        clear(model)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                run(model, measure, self._batch, everything)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self._losses = run(model, measure, self._batch, everything)

    def run(self, batch: Batch) -> dict[str, Tensor]:
        """Gradients of another batch of the same shape."""
        self._batch.copy_from(batch)
        self.graph.replay()
        return self._losses
