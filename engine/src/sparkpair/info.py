# SPDX-License-Identifier: Apache-2.0
"""`sparkpair info`: what a checkpoint directory holds, read from headers and configuration alone."""

from __future__ import annotations

import pathlib
from typing import Any

from sparkpair.checkpoint.names import is_backbone, is_mtp, is_vision
from sparkpair.checkpoint.rank_weights import parameter_count
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.model.config import load_document, load_text_config


def describe(model: pathlib.Path) -> dict[str, Any]:
    """Figures of the checkpoint as plain data. Raises UserError when it is not one, or is incomplete."""
    document = load_document(model)
    config = load_text_config(model)
    checkpoint = Checkpoint(model)
    stored: dict[str, int] = {}
    parameters = backbone = mtp = vision = 0
    for name, entry in checkpoint.entries.items():
        stored[entry.dtype] = stored.get(entry.dtype, 0) + entry.nbytes
        count = parameter_count(name, entry)
        parameters += count
        backbone += count if is_backbone(config, name) else 0
        mtp += count if is_mtp(config, name) else 0
        vision += count if is_vision(name) else 0
    return {
        "model": str(model),
        "architecture": document.get("architectures", ["unknown"])[0],
        "window": config.max_position_embeddings,
        "layers": {
            "kda": config.kda_layers,
            "dsa": config.dsa_layers,
            "dense": config.feed_forward.count("dense"),
            "moe": config.feed_forward.count("sparse"),
            "mtp": config.mtp_layers,
        },
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "experts": config.num_experts,
        "experts_per_token": config.experts_per_token,
        "index_topk": config.index_topk,
        "index_kpool": config.index_kpool,
        "parameters": parameters,
        "parameters_backbone": backbone,
        "parameters_mtp": mtp,
        "parameters_vision": vision,
        "files": len(checkpoint.files),
        "bytes_by_dtype": stored,
        "digest": checkpoint.digest(),
    }


def render(found: dict[str, Any]) -> str:
    """The same figures for the terminal."""
    layers = ", ".join(f"{count} {kind}" for kind, count in found["layers"].items())
    stored = ", ".join(f"{size / 2**20:.1f} MiB {dtype}" for dtype, size in sorted(found["bytes_by_dtype"].items()))
    lines = {
        "model": found["model"],
        "architecture": found["architecture"],
        "window": f"{found['window']} tokens",
        "layers": layers,
        "hidden size": found["hidden_size"],
        "vocabulary": found["vocab_size"],
        "experts": f"{found['experts']}, {found['experts_per_token']} per token",
        "indexer": f"{found['index_topk']} tokens in pools of {found['index_kpool']}",
        "parameters": f"{found['parameters'] / 1e6:.2f} million",
        "backbone": f"{found['parameters_backbone'] / 1e6:.2f} million",
        "MTP layer": f"{found['parameters_mtp'] / 1e6:.2f} million",
        "vision tower": f"{found['parameters_vision'] / 1e6:.2f} million",
        "stored": f"{stored} in {found['files']} files",
        "digest": found["digest"],
    }
    return "\n".join(f"{name:<13} {value}" for name, value in lines.items())
