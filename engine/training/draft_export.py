# SPDX-License-Identifier: Apache-2.0
"""`python -m training.draft_export WORK DIR`: the trained drafter as `sparkpair serve --drafter DIR` loads it."""

from __future__ import annotations

import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from sparkpair.checkpoint.manifest import staged, write_manifest
from sparkpair.errors import UserError
from sparkpair.model.config import load_text_config

from training import state
from training.drafter import HOME
from training.plan import Size, draft_document, drafter_config
from training.twin.drafter import Drafter


def write_trained_drafter(directory: pathlib.Path, work: pathlib.Path, size: Size, seed: int = 1) -> None:
    """Write the drafter that was trained in `work` to `directory`, which must not exist or be empty.

    Raises UserError when none was trained there, or the disk does not take it.
    """
    document = draft_document(size)
    config = drafter_config(document, load_text_config(work / "text"))
    drafter = Drafter(config)
    if state.load(work / HOME, drafter, None) is None:
        raise UserError(f"{work / HOME} holds no trained drafter: run `python -m training.drafter {work}` first")
    trained = drafter.state_dict()
    tensors = {name: trained[name].to(torch.bfloat16).contiguous() for name in config.shapes()}
    with staged(directory) as staging:
        (staging / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, str(staging / "model.safetensors"), metadata={"format": "pt"})
        write_manifest(staging, seed)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="training.draft_export", description=__doc__)
    parser.add_argument("work", type=pathlib.Path, metavar="WORK", help="where the drafter was trained")
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="a new directory")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="dimensions (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="with which it was trained")
    options = parser.parse_args()
    try:
        write_trained_drafter(options.directory, options.work, options.size, options.seed)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
