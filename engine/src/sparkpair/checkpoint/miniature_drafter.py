# SPDX-License-Identifier: Apache-2.0
"""`sparkpair miniature-drafter`: a seeded random DFlash2 drafter for a given model, at small dimensions.

Field names, tensor names and dtypes are those of the released drafter, so the same code loads both. Random weights
guess badly: it is for seeing that nothing but speed depends on how good the guesses are.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save_file

from sparkpair.checkpoint.manifest import staged, write_manifest
from sparkpair.checkpoint.miniature import drawn_values
from sparkpair.checkpoint.miniature_shapes import TensorPlan
from sparkpair.model.config import TextConfig, load_text_config
from sparkpair.model.dflash2_config import ARCHITECTURE, DFlash2Config, load_dflash2_config

LAYERS = 2
TAPS = 3


def drafter_document(target: TextConfig) -> dict[str, Any]:
    """The config.json of a drafter for `target`; its taps are spread over the target's layers."""
    taps = sorted({(index + 1) * target.num_layers // (TAPS + 1) for index in range(TAPS)})
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "intermediate_size": 2 * target.hidden_size,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000, "rope_type": "default"},
        "layer_types": ["sliding_attention"] * LAYERS,
        "sliding_window": 2048,
        "is_causal": False,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position_embeddings,
        "num_target_layers": target.num_layers,
        "dtype": "bfloat16",
        "dflash_config": {
            "block_size": 8,
            "mask_token_id": target.vocab_size - 1,
            "target_layer_ids": taps,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 16,
            "selector_top_k": 16,
        },
    }


def _plans(config: DFlash2Config) -> Iterator[TensorPlan]:
    for name, shape in config.shapes().items():
        centre, spread = 0.0, shape[-1] ** -0.5
        if name.endswith("norm.weight"):
            centre, spread = 1.0, 0.1
        elif name.endswith("base_kernel"):
            spread = 0.5
        elif name.endswith("codebook"):
            spread = 1.0
        yield TensorPlan(name, shape, torch.bfloat16, centre, spread)


def write_drafter(directory: pathlib.Path, target: pathlib.Path, *, seed: int) -> None:
    """Write a drafter for the checkpoint `target` to `directory`, which must not exist or be empty.

    Raises UserError naming the path when the disk does not take it, or what is wrong with the target.
    """
    text = load_text_config(target)
    with staged(directory) as staging:
        write_drafter_files(staging, drafter_document(text), text, seed)
        write_manifest(staging, seed)


def write_drafter_files(directory: pathlib.Path, document: dict[str, Any], target: TextConfig, seed: int) -> None:
    """Write config.json and model.safetensors of a drafter."""
    (directory / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    config = load_dflash2_config(directory, target, 1)
    tensors = {plan.name: drawn_values(plan, seed).to(plan.dtype) for plan in _plans(config)}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
