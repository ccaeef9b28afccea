# SPDX-License-Identifier: Apache-2.0
"""Where a training run stands: written as it goes, so that the next run goes on.

`weights-N.safetensors` hold the weights in bf16, each small enough to be carried, experts apart once these are EXL3;
`state.pt` beside them holds all of it in fp32 with the optimiser, for a run on the same machine. Without it a run warms
the optimiser up again.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training import experts
from training.names import checkpoint_tensors, load_tensors
from training.optimiser import Optimiser

# A file of weights is at most about this large.
PART_BYTES = 12_000_000

WHOLE = "state.pt"
PROGRESS = "progress.json"


@dataclasses.dataclass(slots=True)
class Progress:
    """How far training has come: minutes of all runs together, steps, tokens of them.

    Minutes count from zero again once the experts are EXL3; steps and tokens go on.
    """

    minutes: float = 0.0
    steps: int = 0
    tokens: int = 0


def save(directory: pathlib.Path, model: nn.Module, optimiser: Optimiser | None, progress: Progress) -> None:
    """Write everything; what stood there before is replaced, the whole state last."""
    directory.mkdir(parents=True, exist_ok=True)
    save_weights(directory, model)
    (directory / f"{PROGRESS}.new").write_text(json.dumps(dataclasses.asdict(progress)) + "\n", encoding="utf-8")
    (directory / f"{PROGRESS}.new").replace(directory / PROGRESS)
    if optimiser is not None:
        whole = {"model": model.state_dict(), "optimiser": optimiser.state(), "progress": dataclasses.asdict(progress)}
        torch.save(whole, directory / f"{WHOLE}.new")
        (directory / f"{WHOLE}.new").replace(directory / WHOLE)


def save_weights(directory: pathlib.Path, model: nn.Module) -> None:
    """Write the weights in bf16, what is no matrix in fp32, in files of PART_BYTES; frozen ones are left out.

    Whoever is ended while they are written leaves the old ones, as long as these are as many.
    """
    kept = {
        name: tensor.detach().to("cpu", torch.bfloat16 if tensor.dim() > 1 else torch.float32, copy=True).contiguous()
        for name, tensor in checkpoint_tensors(model, frozen=False).items()
    }
    parts = in_parts(kept, PART_BYTES)
    files = [directory / f"weights-{number}.safetensors" for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        save_file(part, f"{file}.new")
    for file in files:
        pathlib.Path(f"{file}.new").replace(file)
    for old in set(directory.glob("weights-*.safetensors")) - set(files):
        old.unlink()


def in_parts(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """The tensors in their order, in parts of at most so many bytes; a tensor that is larger has one of its own."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > most:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def minutes_of(directory: pathlib.Path) -> float:
    """For how long the runs in a directory have trained by now; 0 when there was none."""
    file = directory / PROGRESS
    return Progress(**json.loads(file.read_text(encoding="utf-8"))).minutes if file.exists() else 0.0


def load(directory: pathlib.Path, model: nn.Module, optimiser: Optimiser | None) -> Progress | None:
    """Go on from a directory: from its whole state, else from its weights; None when it has neither."""
    if (directory / WHOLE).exists():
        whole: dict[str, Any] = torch.load(directory / WHOLE, map_location="cpu", weights_only=True)
        model.load_state_dict(whole["model"])
        if optimiser is not None:
            optimiser.load(whole["optimiser"])
        return Progress(**whole["progress"])
    files = sorted(directory.glob("weights-*.safetensors"))
    if not files:
        return None
    tensors = experts.decoded(experts.read(directory)) if experts.encoded(directory) else {}
    for file in files:
        tensors |= load_file(str(file))
    load_tensors(model, tensors)
    return Progress(**json.loads((directory / PROGRESS).read_text(encoding="utf-8")))
