# SPDX-License-Identifier: Apache-2.0
"""`sparkpair miniature`: a seeded random checkpoint of the real architecture at small dimensions.

Tensor names, dtypes and the configuration's schema are those of the released checkpoint, so the same code loads both.
A tensor's values depend on the seed and its name alone. The rows of the output head that belong to readable tokens are
stronger than the rest, so that what the model says, though meaningless, is text.
"""

from __future__ import annotations

import hashlib
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from sparkpair.checkpoint.manifest import staged, write_manifest
from sparkpair.checkpoint.miniature_shapes import TensorPlan, tensor_plans
from sparkpair.checkpoint.miniature_text import TokenizerLayout, write_tokenizer
from sparkpair.checkpoint.safetensors import INDEX_NAME
from sparkpair.errors import UserError
from sparkpair.kernels.reference.exl3 import HADAMARD
from sparkpair.model.config import parse_text_config

DEFAULT_SEED = 1

# How much weaker the head's rows of unreadable tokens are (control tokens, bytes that are no text of their own).
UNREADABLE_STRENGTH = 0.05

TEXT_DEFAULTS: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "vocab_size": 1536,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 1_048_576,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 0,
    "mla_use_nope": True,
    "v_head_dim": 32,
    "index_n_heads": 8,
    "index_head_dim": 32,
    "index_topk": 256,
    "index_kpool": 4,
    "index_kpool_compress": True,
    "index_kpool_always_select_tail": True,
    "linear_attn_config": {
        "num_heads": 6,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "swiglu_limit": 10.0,
    "mhc": True,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "dtype": "bfloat16",
}

# Routed experts as the checkpoint stores them.
ExpertStore = Literal["bf16", "exl3"]
EXPERT_STORES: tuple[ExpertStore, ...] = ("bf16", "exl3")

EXL3_BITS = 4

# EXL3 experts are cut in blocks of 128 columns: three, so that up to three ranks can share them.
EXL3_TEXT_DEFAULTS: dict[str, Any] = {"moe_intermediate_size": 384}

VISION_DEFAULTS: dict[str, Any] = {
    "model_type": "glm5_next_vision",
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "in_channels": 3,
    "image_size": 448,
    "projection_intermediate_size": 256,
    "hidden_act": "silu",
    "attention_bias": True,
    "rms_norm_eps": 1e-5,
    "swiglu_limit": 10.0,
}


def _merge(defaults: dict[str, Any], overrides: dict[str, Any], where: str) -> dict[str, Any]:
    """Defaults with overrides laid over them; objects merge, unknown names are refused by path."""
    known = set(defaults) | {"layer_types", "mlp_layer_types", "indexer_types", "initializer_range"}
    merged = dict(defaults)
    for name, value in overrides.items():
        if name not in known:
            raise UserError(f"--config: {where}{name} is not a field of the miniature's configuration")
        if isinstance(merged.get(name), dict):
            if not isinstance(value, dict):
                raise UserError(f"--config: {where}{name} is {value!r}, expected an object")
            value = _merge(merged[name], value, f"{where}{name}.")
        merged[name] = value
    return merged


def miniature_document(overrides: dict[str, Any], experts: ExpertStore = "bf16") -> dict[str, Any]:
    """The config.json of a miniature, token ids still missing. `overrides` may hold text_config and vision_config.

    Raises UserError naming the field when an override is unknown or the configuration cannot be served.
    """
    unknown = set(overrides) - {"text_config", "vision_config"}
    if unknown:
        raise UserError(
            f"--config: {', '.join(sorted(unknown))}: expected an object with text_config and vision_config only"
        )
    defaults = TEXT_DEFAULTS | (EXL3_TEXT_DEFAULTS if experts == "exl3" else {})
    text = _merge(defaults, overrides.get("text_config", {}), "text_config.")
    if "num_attention_heads" in overrides.get("text_config", {}):
        text["num_key_value_heads"] = text["num_attention_heads"]
    vision = _merge(VISION_DEFAULTS, overrides.get("vision_config", {}), "vision_config.")
    vision["out_hidden_size"] = text["hidden_size"]
    document = {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
    }
    parse_text_config(document, "--config")
    if experts == "exl3":
        for name in ("hidden_size", "moe_intermediate_size"):
            if text[name] % HADAMARD:
                raise UserError(f"--experts exl3: {name} is {text[name]}, expected a multiple of {HADAMARD}")
        document["quantization_config"] = {"quant_method": "exl3", "bits": EXL3_BITS}
    return document


def place_token_ids(document: dict[str, Any], layout: TokenizerLayout) -> None:
    """Write the ids that the tokenizer gave to its markers into a config.json document."""
    text = document["text_config"]
    text["pad_token_id"] = layout.pad_id
    text["eos_token_id"] = list(layout.eos_ids)
    ids = layout.special_ids
    document["image_token_id"] = ids["<|image|>"]
    document["video_token_id"] = ids["<|video|>"]
    document["image_start_token_id"] = ids["<|begin_of_image|>"]
    document["image_end_token_id"] = ids["<|end_of_image|>"]
    document["video_start_token_id"] = ids["<|begin_of_video|>"]
    document["video_end_token_id"] = ids["<|end_of_video|>"]


def drawn_values(plan: TensorPlan, seed: int) -> torch.Tensor:
    """Seeded values of one tensor, drawn as its plan says, fp32 or int64."""
    key = hashlib.sha256(f"{seed}:{plan.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") & (2**63 - 1))
    if plan.draw == "bits":
        return torch.randint(-(2**15), 2**15, plan.shape, generator=generator)
    if plan.draw == "constant":
        return torch.full(plan.shape, int(plan.centre))
    noise = torch.randn(math.prod(plan.shape), generator=generator).view(plan.shape)
    if plan.draw == "signs":
        return plan.spread * noise.sign()
    return plan.centre + plan.spread * noise


def _tensors(document: dict[str, Any], seed: int, readable: frozenset[int]) -> Iterator[tuple[str, torch.Tensor]]:
    config = parse_text_config(document, "config.json")
    bits = document.get("quantization_config", {}).get("bits")
    for plan in tensor_plans(config, document["vision_config"], bits):
        tensor = drawn_values(plan, seed)
        if plan.name == "lm_head.weight":
            strength = torch.full((config.vocab_size, 1), UNREADABLE_STRENGTH)
            strength[sorted(readable)] = 1.0
            tensor = tensor * strength
        yield plan.name, tensor.to(plan.dtype)


def write_miniature(
    directory: pathlib.Path, *, seed: int, overrides: dict[str, Any], experts: ExpertStore = "bf16"
) -> None:
    """Write the checkpoint to `directory`, which must not exist or be empty.

    Raises UserError naming the path when the disk does not take it.
    """
    document = miniature_document(overrides, experts)
    with staged(directory) as staging:
        _write_files(staging, document, seed)


def _write_files(directory: pathlib.Path, document: dict[str, Any], seed: int) -> None:
    layout = write_tokenizer(directory, document["text_config"]["vocab_size"])
    place_token_ids(document, layout)
    write_weights(directory, document, seed, frozenset(layout.readable_ids))
    write_manifest(directory, seed)


def write_weights(directory: pathlib.Path, document: dict[str, Any], seed: int, readable: frozenset[int]) -> None:
    """Write config.json, two or more .safetensors files and their index."""
    # Two files, as a real checkpoint has many: the layers apart from embeddings, head and vision tower.
    outer: dict[str, torch.Tensor] = {}
    layers: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(document, seed, readable):
        (layers if ".layers." in name else outer)[name] = tensor
    write_tensors(directory, document, [outer, layers])


def write_tensors(directory: pathlib.Path, document: dict[str, Any], parts: list[dict[str, torch.Tensor]]) -> None:
    """Write config.json, a .safetensors file for each of `parts`, and their index. Raises OSError."""
    (directory / "config.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    weight_map = {}
    for number, tensors in enumerate(parts, start=1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        weight_map.update(dict.fromkeys(tensors, file))
        try:
            save_file(tensors, str(directory / file), metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(None, str(error)) from None
        # The library leaves files that their owner alone can read.
        (directory / file).chmod(0o644)
    total = sum(tensor.nbytes for tensors in parts for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
