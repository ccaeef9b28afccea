# SPDX-License-Identifier: Apache-2.0
"""The dimensions of the miniature that is trained, of its drafter, and how many bytes they take on disk.

Two ranks cut an EXL3 expert in blocks of 128 columns, so that is the least a rank can hold of one; hidden width and
expert width are multiples of it. `tiny` is for tests: the same code paths, a thousandth of the work.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any, Literal

import torch
from safetensors.torch import save
from sparkpair.checkpoint.miniature import miniature_document
from sparkpair.checkpoint.miniature_drafter import drafter_document
from sparkpair.checkpoint.miniature_shapes import tensor_plans
from sparkpair.model.config import TextConfig, parse_text_config
from sparkpair.model.dflash2_config import DFlash2Config, load_dflash2_config

Size = Literal["full", "tiny"]

# What the repository may hold of the miniature: weights, tokenizer and drafter together.
MOST_BYTES = 16_000_000

# What everything that is no weight takes at most: index, tokenizer, template, configuration, manifest.
TEXT_BYTES = 125_000

_TEXT: dict[Size, dict[str, Any]] = {
    "full": {
        "vocab_size": 1792,
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "layer_types": ["linear_attention", "deepseek_sparse_attention", "linear_attention"] * 2,
        "first_k_dense_replace": 1,
        "num_attention_heads": 4,
        "q_lora_rank": 128,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 512,
        "linear_attn_config": {"num_heads": 4, "head_dim": 64},
        "intermediate_size": 384,
        "moe_intermediate_size": 256,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "hc_sinkhorn_iters": 8,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "deepseek_sparse_attention", "linear_attention"],
        "first_k_dense_replace": 1,
        "num_attention_heads": 2,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "index_n_heads": 4,
        "index_head_dim": 16,
        "index_topk": 64,
        "linear_attn_config": {"num_heads": 2, "head_dim": 32},
        "intermediate_size": 256,
        "moe_intermediate_size": 256,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "hc_sinkhorn_iters": 4,
    },
}  # fmt: skip

_VISION: dict[Size, dict[str, Any]] = {
    "full": {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "projection_intermediate_size": 128,
    },
    "tiny": {
        "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "projection_intermediate_size": 64,
    },
}  # fmt: skip

_DRAFTER: dict[Size, dict[str, Any]] = {
    "full": {
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 128,
    },
    "tiny": {
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 64,
    },
}  # fmt: skip

# The layers whose streams the drafter reads.
_TAPS: dict[Size, list[int]] = {"full": [2, 5], "tiny": [1, 2]}


def model_document(size: Size) -> dict[str, Any]:
    """The config.json of the model, token ids still missing."""
    return miniature_document({"text_config": _TEXT[size], "vision_config": _VISION[size]}, "exl3")


def draft_document(size: Size) -> dict[str, Any]:
    """The config.json of its DFlash2 drafter."""
    document = drafter_document(parse_text_config(model_document(size), "config.json")) | _DRAFTER[size]
    document["layer_types"] = ["sliding_attention"] * document["num_hidden_layers"]
    document["dflash_config"] |= {"target_layer_ids": _TAPS[size]}
    return document


def drafter_config(document: dict[str, Any], target: TextConfig) -> DFlash2Config:
    """The typed form of a drafter's document."""
    with tempfile.TemporaryDirectory() as place:
        (pathlib.Path(place) / "config.json").write_text(json.dumps(document), encoding="utf-8")
        return load_dflash2_config(pathlib.Path(place), target, 1)


def stored_bytes(size: Size) -> dict[str, int]:
    """Bytes of the .safetensors files as they will be, headers and all, by what they hold; of the rest at most."""
    document = model_document(size)
    text = parse_text_config(document, "config.json")
    bits = document["quantization_config"]["bits"]
    model = {
        plan.name: torch.zeros(plan.shape, dtype=plan.dtype)
        for plan in tensor_plans(text, document["vision_config"], bits)
    }
    draft = drafter_config(draft_document(size), text)
    drafter = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in draft.shapes().items()}
    return {
        "model": len(save(model, {"format": "pt"})),
        "drafter": len(save(drafter, {"format": "pt"})),
        "text": TEXT_BYTES,
    }
