# SPDX-License-Identifier: Apache-2.0
"""The released checkpoints as shapes: real names, shapes and dtypes in sparse files that hold no data.

The tables repeat the published listing number by number and use nothing of the engine, so that agreeing with them says
something.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Literal

Store = Literal["bf16", "exl3"]
Tensor = tuple[str, tuple[int, ...], str]

DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I16": 2, "I32": 4}

CONFIG: dict[str, Any] = {
    "architectures": ["Glm5NextForConditionalGeneration"],
    "model_type": "glm5_next",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "glm5_next_text", "hidden_size": 4096, "num_hidden_layers": 45, "num_nextn_predict_layers": 1,
        "vocab_size": 154880, "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "attention_bias": False, "eos_token_id": [154820, 154827, 154829],
        "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "head_dim": 0, "mla_use_nope": True,
        "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 4,
        "index_kpool_compress": True, "index_kpool_always_select_tail": True, "indexer_types": ["full"] * 45,
        "layer_types": [
            "deepseek_sparse_attention" if index % 4 == 3 else "linear_attention" for index in range(45)
        ],
        "linear_attn_config": {
            "num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0
        },
        "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 288, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "swiglu_limit": 10.0,
        "mhc": True, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "dtype": "bfloat16",
    },
    "vision_config": {
        "model_type": "glm5_next_vision", "depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
        "num_heads": 16, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3,
        "image_size": 448, "out_hidden_size": 4096, "projection_intermediate_size": 10240, "hidden_act": "silu",
        "attention_bias": True, "rms_norm_eps": 1e-5, "swiglu_limit": 10.0,
    },
}  # fmt: skip

KDA: dict[str, tuple[int, ...]] = {
    "q_proj.weight": (8192, 4096), "k_proj.weight": (8192, 4096), "v_proj.weight": (8192, 4096),
    "q_conv1d.weight": (8192, 1, 4), "k_conv1d.weight": (8192, 1, 4), "v_conv1d.weight": (8192, 1, 4),
    "f_a_proj.weight": (128, 4096), "g_a_proj.weight": (128, 4096),
    "f_b_proj.weight": (8192, 128), "g_b_proj.weight": (8192, 128),
    "b_proj.weight": (64, 4096), "A_log": (64,), "dt_bias": (8192,), "o_norm.weight": (128,),
    "o_proj.weight": (4096, 8192),
}  # fmt: skip

DSA: dict[str, tuple[int, ...]] = {
    "q_a_proj.weight": (1536, 4096), "q_a_layernorm.weight": (1536,), "q_b_proj.weight": (16384, 1536),
    "kv_a_proj_with_mqa.weight": (512, 4096), "kv_a_layernorm.weight": (512,), "kv_b_proj.weight": (32768, 512),
    "o_proj.weight": (4096, 16384), "indexer.wq_b.weight": (4096, 1536), "indexer.wk.weight": (128, 4096),
    "indexer.k_norm.weight": (128,), "indexer.k_norm.bias": (128,), "indexer.weights_proj.weight": (32, 4096),
    "indexer.index_kpool_compress_ape": (4, 128), "indexer.index_kpool_compress_gate": (128, 4096),
}  # fmt: skip

HYPER: dict[str, tuple[int, ...]] = {
    "hc_attn_fn": (24, 16384), "hc_ffn_fn": (24, 16384), "hc_attn_base": (24,), "hc_ffn_base": (24,),
    "hc_attn_scale": (3,), "hc_ffn_scale": (3,),
}  # fmt: skip

NORMS: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (4096,), "post_attention_layernorm.weight": (4096,)}

MTP: dict[str, tuple[int, ...]] = {
    "enorm.weight": (4096,), "hnorm.weight": (4096,), "eh_proj.weight": (4096, 8192), "shared_head.norm.weight": (4096,)
}  # fmt: skip

BLOCK: dict[str, tuple[int, ...]] = {
    "norm1.weight": (1024,), "norm2.weight": (1024,), "attn.qkv.weight": (3072, 1024), "attn.qkv.bias": (3072,),
    "attn.proj.weight": (1024, 1024), "attn.proj.bias": (1024,), "attn.q_norm.weight": (64,),
    "attn.k_norm.weight": (64,),
    "mlp.gate_proj.weight": (4096, 1024), "mlp.gate_proj.bias": (4096,), "mlp.up_proj.weight": (4096, 1024),
    "mlp.up_proj.bias": (4096,), "mlp.down_proj.weight": (1024, 4096), "mlp.down_proj.bias": (1024,),
}  # fmt: skip

TOWER: dict[str, tuple[int, ...]] = {
    "patch_embed.proj.weight": (1024, 3, 2, 14, 14), "patch_embed.proj.bias": (1024,), "post_layernorm.weight": (1024,),
    "downsample.weight": (4096, 1024, 2, 2), "downsample.bias": (4096,), "merger.proj.weight": (4096, 4096),
    "merger.post_projection_norm.weight": (4096,), "merger.post_projection_norm.bias": (4096,),
    "merger.gate_proj.weight": (10240, 4096), "merger.up_proj.weight": (10240, 4096),
    "merger.down_proj.weight": (4096, 10240),
}  # fmt: skip

FP32 = ("A_log", "dt_bias", "hc_attn_base", "hc_ffn_base", "hc_attn_scale", "hc_ffn_scale", "e_score_correction_bias")


def _under(prefix: str, table: dict[str, tuple[int, ...]]) -> Iterator[Tensor]:
    for name, shape in table.items():
        yield f"{prefix}.{name}", shape, "F32" if name in FP32 else "BF16"


def _expert(prefix: str, rows: int, columns: int, store: Store) -> Iterator[Tensor]:
    if store == "bf16":
        yield f"{prefix}.weight", (rows, columns), "BF16"
        return
    yield f"{prefix}.trellis", (columns // 16, rows // 16, 64), "I16"
    yield f"{prefix}.suh", (columns,), "F16"
    yield f"{prefix}.svh", (rows,), "F16"
    yield f"{prefix}.mcg", (), "I32"


def _swiglu(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (width, 4096),
        f"{prefix}up_proj.weight": (width, 4096),
        f"{prefix}down_proj.weight": (4096, width),
    }


def _layer(index: int, store: Store) -> Iterator[Tensor]:
    prefix = f"model.language_model.layers.{index}"
    yield from _under(prefix, NORMS)
    yield from _under(prefix, MTP if index == 45 else HYPER)
    yield from _under(f"{prefix}.self_attn", DSA if index % 4 == 3 or index == 45 else KDA)
    if index < 3:
        yield from _under(f"{prefix}.mlp", _swiglu("", 12288))
        return
    yield f"{prefix}.mlp.gate.weight", (288, 4096), "BF16"
    yield f"{prefix}.mlp.gate.e_score_correction_bias", (288,), "F32"
    yield from _under(f"{prefix}.mlp", _swiglu("shared_experts.", 2048))
    for expert in range(288):
        for projection, rows, columns in (("gate", 2048, 4096), ("up", 2048, 4096), ("down", 4096, 2048)):
            yield from _expert(f"{prefix}.mlp.experts.{expert}.{projection}_proj", rows, columns, store)


def _outer() -> Iterator[Tensor]:
    yield "model.language_model.embed_tokens.weight", (154880, 4096), "BF16"
    yield "model.language_model.norm.weight", (4096,), "BF16"
    yield "lm_head.weight", (154880, 4096), "BF16"
    yield from _under("model.visual", TOWER)
    for block in range(24):
        yield from _under(f"model.visual.blocks.{block}", BLOCK)


def write_released(directory: pathlib.Path, store: Store) -> None:
    """config.json and one sparse file a layer, headers written and data left as holes."""
    directory.mkdir()
    document = CONFIG | ({"quantization_config": {"quant_method": "exl3", "bits": 4}} if store == "exl3" else {})
    (directory / "config.json").write_text(json.dumps(document))
    groups = [list(_outer()), *([*_layer(index, store)] for index in range(46))]
    for number, tensors in enumerate(groups, start=1):
        _write_sparse(directory / f"model-{number:05d}-of-{len(groups):05d}.safetensors", tensors)


def _write_sparse(path: pathlib.Path, tensors: list[Tensor]) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape, dtype in tensors:
        start, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + end)
