# SPDX-License-Identifier: Apache-2.0
"""`python -m training.export WORK TARGET`: the finished model of WORK as a checkpoint that the engine serves.

Names, dtypes and configuration are those of `sparkpair miniature --experts exl3`; every file is small enough for a
repository.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
from typing import Any

import torch
from sparkpair.checkpoint.exl3 import is_exl3_part
from sparkpair.checkpoint.manifest import MANIFEST_NAME, staged, write_manifest
from sparkpair.checkpoint.miniature import write_tensors
from sparkpair.checkpoint.miniature_shapes import tensor_plans
from sparkpair.errors import UserError
from sparkpair.model.config import parse_text_config
from sparkpair.model.dflash2_config import load_dflash2_config
from torch import Tensor

from training import experts, state
from training.names import checkpoint_tensors
from training.plan import MOST_BYTES
from training.twin.model import Twin

# A file of weights is at most about this large.
PART_BYTES = 8_000_000

# The drafter's directory inside a checkpoint's.
DRAFTER = "drafter"


def stored_tensors(
    document: dict[str, Any], trained: dict[str, Tensor], packed: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Every tensor of the checkpoint as it is stored: experts from `packed`, the rest `trained`, rounded.

    Raises UserError for one that is missing, has another shape, or is not finite.
    """
    found = {}
    text = parse_text_config(document, "config.json")
    for plan in tensor_plans(text, document["vision_config"], document["quantization_config"]["bits"]):
        tensor = (packed if is_exl3_part(plan.name) else trained).get(plan.name)
        if tensor is None or tensor.shape != plan.shape:
            what = "missing" if tensor is None else f"of shape {list(tensor.shape)}, expected {list(plan.shape)}"
            raise UserError(f"{plan.name} is {what}: weights, experts and config.json are not of one model")
        stored = tensor.detach().to("cpu", plan.dtype, copy=True).contiguous()
        if not torch.isfinite(stored).all():
            raise UserError(f"{plan.name} holds numbers that are not finite")
        found[plan.name] = stored
    return found


def export(work: pathlib.Path, target: pathlib.Path, drafter: pathlib.Path | None = None) -> dict[str, int]:
    """Write `target`, which must not exist or be empty, and return the bytes of its weights, drafter and text files.

    `drafter` is a DFlash2 drafter's directory, which is taken in. Raises UserError where the experts are not EXL3 yet,
    for tensors that do not fit, and when all together is more than the repository may hold.
    """
    if not experts.encoded(work):
        raise UserError(
            f"{work} holds no {experts.EXPERTS}: encode its experts first, with python -m training.quantise"
        )
    config = work / "text" / "config.json"
    if not config.exists():
        raise UserError(f"{config} is missing: bring the text files of the directory in which the model was trained")
    document: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    twin = Twin(document)
    if state.load(work, twin, None) is None:
        raise UserError(f"{work} holds no weights beside its experts")
    tensors = stored_tensors(document, checkpoint_tensors(twin), experts.read(work))
    with staged(target) as staging:
        shutil.copytree(work / "text", staging, dirs_exist_ok=True)
        write_tensors(staging, document, state.in_parts(tensors, PART_BYTES))
        if drafter is not None:
            load_dflash2_config(drafter, twin.config, 1)
            shutil.copytree(drafter, staging / DRAFTER, ignore=shutil.ignore_patterns(MANIFEST_NAME))
        write_manifest(staging, None)
        sizes = _sizes(staging)
        if sum(sizes.values()) > MOST_BYTES:
            raise UserError(f"the checkpoint would take {sum(sizes.values())} bytes of {MOST_BYTES}: {sizes}")
    return sizes


def _sizes(directory: pathlib.Path) -> dict[str, int]:
    sizes = {"weights": 0, "drafter": 0, "text": 0}
    for path in directory.rglob("*"):
        if path.is_file():
            kind = "weights" if path.suffix == ".safetensors" else "text"
            sizes["drafter" if path.parent.name == DRAFTER else kind] += path.stat().st_size
    return sizes


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="training.export", description=__doc__)
    parser.add_argument("work", type=pathlib.Path, metavar="WORK", help="a directory with EXL3 experts")
    parser.add_argument("target", type=pathlib.Path, metavar="TARGET", help="a new directory")
    parser.add_argument("--drafter", type=pathlib.Path, metavar="DIR", help="a DFlash2 drafter to take in")
    options = parser.parse_args()
    try:
        sizes = export(options.work, options.target, options.drafter)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
