# SPDX-License-Identifier: Apache-2.0
"""`python -m training.quantise WORK TARGET`: encode the routed experts of what was trained in WORK as EXL3.

TARGET becomes a directory of training of its own, in which the other weights can be trained on: `python -m training
TARGET`. WORK is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.torch import save_file
from sparkpair.checkpoint.exl3_encode import encode
from sparkpair.checkpoint.manifest import staged
from sparkpair.errors import UserError
from sparkpair.kernels.weights import Exl3Weight
from torch import Tensor

from training import experts, state
from training.names import checkpoint_tensors, load_tensors
from training.train import log_to
from training.twin.model import Twin

# Encodes a matrix fp32 [out, in] at some bits a weight, its signs drawn by the generator.
Encode = Callable[[Tensor, int, torch.Generator], Exl3Weight]


def encode_experts(matrices: Mapping[str, Tensor], bits: int, seed: int, encoder: Encode = encode) -> dict[str, Tensor]:
    """The EXL3 tensors, on the CPU, of experts' matrices fp32 [out, in] by name.

    A matrix's signs depend on the seed and its name alone.
    """
    found: dict[str, Tensor] = {}
    for name, matrix in matrices.items():
        match = experts.MATRIX.fullmatch(name)
        if match is None:
            raise ValueError(f"{name} is no matrix of a routed expert")
        key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") & (2**63 - 1))
        found |= experts.tensors_of(match[1], encoder(matrix, bits, generator))
    return found


@torch.no_grad()
def quantise(
    work: pathlib.Path, target: pathlib.Path, *, device: str = "cpu", seed: int = 1, encoder: Encode = encode
) -> dict[str, Any]:
    """Write `target`, which must not exist or be empty, and return figures of it.

    Raises UserError where nothing was trained, or the experts are EXL3 already.
    """
    begun = time.monotonic()
    config = work / "text" / "config.json"
    if not config.exists():
        raise UserError(f"{work} is no directory of training: {config} is missing")
    if experts.encoded(work):
        raise UserError(f"{work} holds {experts.EXPERTS}: its experts are EXL3 already")
    document: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    twin = Twin(document)
    progress = state.load(work, twin, None)
    if progress is None:
        raise UserError(f"{work} holds no weights: train first")
    matrices = {name: own for name, own in checkpoint_tensors(twin).items() if experts.MATRIX.fullmatch(name)}
    with staged(target) as staging:
        moved = {name: matrix.to(device) for name, matrix in matrices.items()}
        tensors = encode_experts(moved, document["quantization_config"]["bits"], seed, encoder)
        rounded = experts.decoded(tensors)
        error = sum(float((rounded[name] - matrix).square().sum()) for name, matrix in matrices.items())
        size = sum(float(matrix.square().sum()) for matrix in matrices.values())
        load_tensors(twin, checkpoint_tensors(twin) | rounded)
        experts.freeze(twin)
        shutil.copytree(work / "text", staging / "text")
        save_file(tensors, str(staging / experts.EXPERTS), metadata={"format": "pt"})
        state.save(staging, twin, None, state.Progress(0.0, progress.steps, progress.tokens))
    return {
        "matrices": len(matrices),
        "relative_error": round((error / size) ** 0.5, 4),
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="training.quantise", description=__doc__)
    parser.add_argument("work", type=pathlib.Path, metavar="WORK", help="where the model was trained")
    parser.add_argument("target", type=pathlib.Path, metavar="TARGET", help="a new directory")
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the signs")
    options = parser.parse_args()
    try:
        figures = quantise(options.work, options.target, device=options.device, seed=options.seed)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    with log_to(options.target / "log.jsonl") as say:
        say(figures)


if __name__ == "__main__":
    main()
