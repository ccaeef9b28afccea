# SPDX-License-Identifier: Apache-2.0
"""Every tensor of a `glm5_next` checkpoint by its released name, with shape, stored dtype and how its values are drawn.

Shapes follow from the configuration alone. Centre and spread are chosen so that a random model behaves like a trained
one where it matters for tests: every gate, bias, norm and position term is away from its neutral value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import torch

from sparkpair.checkpoint.exl3 import MCG_SIGNED
from sparkpair.checkpoint.exl3_encode import CODEBOOK_RMS
from sparkpair.kernels.reference.exl3 import TILE
from sparkpair.model.config import TextConfig


@dataclasses.dataclass(frozen=True, slots=True)
class TensorPlan:
    """Name, shape and stored dtype of one tensor, and how its values are drawn.

    `normal`: centre + spread * normal noise; `signs`: spread with random signs; `bits`: any; `constant`: the centre.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    centre: float
    spread: float
    draw: Literal["normal", "signs", "bits", "constant"] = "normal"


def _matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> TensorPlan:
    return TensorPlan(name, (rows, columns), torch.bfloat16, 0.0, gain * columns**-0.5)


def _norm(name: str, width: int) -> TensorPlan:
    return TensorPlan(name, (width,), torch.bfloat16, 1.0, 0.1)


def _vector(name: str, shape: tuple[int, ...], spread: float, dtype: torch.dtype, centre: float = 0.0) -> TensorPlan:
    return TensorPlan(name, shape, dtype, centre, spread)


def tensor_plans(config: TextConfig, vision: dict[str, Any], exl3_bits: int | None = None) -> Iterator[TensorPlan]:
    """All tensors: embeddings, backbone layers, MTP layers, final norm, head, vision tower.

    With `exl3_bits` the routed experts are EXL3 linears of that many bits a weight.
    """
    text = "model.language_model"
    width = config.hidden_size
    yield TensorPlan(f"{text}.embed_tokens.weight", (config.vocab_size, width), torch.bfloat16, 0.0, 1.0)
    yield _norm(f"{text}.norm.weight", width)
    yield _matrix("lm_head.weight", config.vocab_size, width, gain=3.0)
    for index in range(config.num_layers):
        prefix = f"{text}.layers.{index}"
        yield from _hyper_connections(config, prefix)
        yield from _block_norms(config, prefix)
        if config.attention[index] == "kda":
            yield from _kda(config, f"{prefix}.self_attn")
        else:
            yield from _dsa(config, f"{prefix}.self_attn")
        if config.feed_forward[index] == "dense":
            yield from _mlp(f"{prefix}.mlp", width, config.intermediate_size)
        else:
            yield from _moe(config, f"{prefix}.mlp", exl3_bits)
    for index in range(config.num_layers, config.num_layers + config.mtp_layers):
        prefix = f"{text}.layers.{index}"
        yield _norm(f"{prefix}.enorm.weight", width)
        yield _norm(f"{prefix}.hnorm.weight", width)
        yield _matrix(f"{prefix}.eh_proj.weight", width, 2 * width)
        yield from _block_norms(config, prefix)
        yield from _dsa(config, f"{prefix}.self_attn")
        yield from _moe(config, f"{prefix}.mlp", exl3_bits)
        yield _norm(f"{prefix}.shared_head.norm.weight", width)
    yield from _vision(vision)


def _hyper_connections(config: TextConfig, prefix: str) -> Iterator[TensorPlan]:
    rows = 2 * config.hc_mult + config.hc_mult**2
    for kind in ("attn", "ffn"):
        yield _matrix(f"{prefix}.hc_{kind}_fn", rows, config.hc_mult * config.hidden_size)
        yield _vector(f"{prefix}.hc_{kind}_base", (rows,), 0.5, torch.float32)
        yield _vector(f"{prefix}.hc_{kind}_scale", (3,), 0.1, torch.float32, centre=1.0)


def _block_norms(config: TextConfig, prefix: str) -> Iterator[TensorPlan]:
    yield _norm(f"{prefix}.input_layernorm.weight", config.hidden_size)
    yield _norm(f"{prefix}.post_attention_layernorm.weight", config.hidden_size)


def _kda(config: TextConfig, prefix: str) -> Iterator[TensorPlan]:
    width, heads, head = config.hidden_size, config.linear_heads, config.linear_head_dim
    inner = heads * head
    for name in "qkv":
        yield _matrix(f"{prefix}.{name}_proj.weight", inner, width)
        yield _vector(f"{prefix}.{name}_conv1d.weight", (inner, 1, config.conv_kernel), 0.5, torch.bfloat16)
    for name in "fg":
        yield _matrix(f"{prefix}.{name}_a_proj.weight", head, width)
        yield _matrix(f"{prefix}.{name}_b_proj.weight", inner, head)
    yield _matrix(f"{prefix}.b_proj.weight", heads, width)
    yield _vector(f"{prefix}.A_log", (heads,), 0.5, torch.float32)
    # Most channels remember for hundreds of tokens, as trained ones do.
    yield _vector(f"{prefix}.dt_bias", (inner,), 2.0, torch.float32, centre=-4.0)
    yield _norm(f"{prefix}.o_norm.weight", head)
    yield _matrix(f"{prefix}.o_proj.weight", width, inner)


def _dsa(config: TextConfig, prefix: str) -> Iterator[TensorPlan]:
    width, heads = config.hidden_size, config.num_heads
    index = f"{prefix}.indexer"
    yield _matrix(f"{prefix}.q_a_proj.weight", config.q_lora_rank, width)
    yield _norm(f"{prefix}.q_a_layernorm.weight", config.q_lora_rank)
    yield _matrix(f"{prefix}.q_b_proj.weight", heads * config.qk_head_dim, config.q_lora_rank)
    yield _matrix(f"{prefix}.kv_a_proj_with_mqa.weight", config.kv_lora_rank, width)
    yield _norm(f"{prefix}.kv_a_layernorm.weight", config.kv_lora_rank)
    yield _matrix(f"{prefix}.kv_b_proj.weight", heads * (config.qk_head_dim + config.v_head_dim), config.kv_lora_rank)
    yield _matrix(f"{prefix}.o_proj.weight", width, heads * config.v_head_dim)
    yield _matrix(f"{index}.wq_b.weight", config.index_heads * config.index_head_dim, config.q_lora_rank)
    yield _matrix(f"{index}.wk.weight", config.index_head_dim, width)
    yield _norm(f"{index}.k_norm.weight", config.index_head_dim)
    yield _vector(f"{index}.k_norm.bias", (config.index_head_dim,), 0.1, torch.bfloat16)
    yield _matrix(f"{index}.weights_proj.weight", config.index_heads, width)
    yield _vector(f"{index}.index_kpool_compress_ape", (config.index_kpool, config.index_head_dim), 0.5, torch.bfloat16)
    yield _matrix(f"{index}.index_kpool_compress_gate", config.index_head_dim, width)


def _mlp(prefix: str, width: int, inner: int) -> Iterator[TensorPlan]:
    yield _matrix(f"{prefix}.gate_proj.weight", inner, width)
    yield _matrix(f"{prefix}.up_proj.weight", inner, width)
    yield _matrix(f"{prefix}.down_proj.weight", width, inner)


def _exl3(prefix: str, rows: int, columns: int, bits: int) -> Iterator[TensorPlan]:
    """Any bits are a valid trellis, so random ones are a random matrix; suh brings it to a trained matrix's size."""
    size = columns**-0.5 / CODEBOOK_RMS
    yield TensorPlan(f"{prefix}.trellis", (columns // TILE, rows // TILE, TILE * bits), torch.int16, 0.0, 0.0, "bits")
    yield TensorPlan(f"{prefix}.suh", (columns,), torch.float16, 0.0, size, "signs")
    yield TensorPlan(f"{prefix}.svh", (rows,), torch.float16, 0.0, 1.0, "signs")
    yield TensorPlan(f"{prefix}.mcg", (), torch.int32, MCG_SIGNED, 0.0, "constant")


def _moe(config: TextConfig, prefix: str, exl3_bits: int | None) -> Iterator[TensorPlan]:
    width, inner = config.hidden_size, config.moe_intermediate_size
    yield _matrix(f"{prefix}.gate.weight", config.num_experts, width)
    yield _vector(f"{prefix}.gate.e_score_correction_bias", (config.num_experts,), 0.1, torch.float32)
    for expert in range(config.num_experts):
        if exl3_bits is None:
            yield from _mlp(f"{prefix}.experts.{expert}", width, inner)
            continue
        yield from _exl3(f"{prefix}.experts.{expert}.gate_proj", inner, width, exl3_bits)
        yield from _exl3(f"{prefix}.experts.{expert}.up_proj", inner, width, exl3_bits)
        yield from _exl3(f"{prefix}.experts.{expert}.down_proj", width, inner, exl3_bits)
    if config.shared_experts:
        yield from _mlp(f"{prefix}.shared_experts", width, inner * config.shared_experts)


def _vision(vision: dict[str, Any]) -> Iterator[TensorPlan]:
    prefix = "model.visual"
    width, inner, out = vision["hidden_size"], vision["intermediate_size"], vision["out_hidden_size"]
    head = width // vision["num_heads"]
    patch = (width, vision["in_channels"], vision["temporal_patch_size"], *[vision["patch_size"]] * 2)
    yield _vector(f"{prefix}.patch_embed.proj.weight", patch, 0.03, torch.bfloat16)
    yield _vector(f"{prefix}.patch_embed.proj.bias", (width,), 0.1, torch.bfloat16)
    for index in range(vision["depth"]):
        block = f"{prefix}.blocks.{index}"
        yield _norm(f"{block}.norm1.weight", width)
        yield _norm(f"{block}.norm2.weight", width)
        yield from _biased(f"{block}.attn.qkv", 3 * width, width)
        yield from _biased(f"{block}.attn.proj", width, width)
        yield _norm(f"{block}.attn.q_norm.weight", head)
        yield _norm(f"{block}.attn.k_norm.weight", head)
        yield from _biased(f"{block}.mlp.gate_proj", inner, width)
        yield from _biased(f"{block}.mlp.up_proj", inner, width)
        yield from _biased(f"{block}.mlp.down_proj", width, inner)
    yield _norm(f"{prefix}.post_layernorm.weight", width)
    merge = vision["spatial_merge_size"]
    yield _vector(f"{prefix}.downsample.weight", (out, width, merge, merge), 0.06, torch.bfloat16)
    yield _vector(f"{prefix}.downsample.bias", (out,), 0.1, torch.bfloat16)
    yield _matrix(f"{prefix}.merger.proj.weight", out, out)
    yield _norm(f"{prefix}.merger.post_projection_norm.weight", out)
    yield _vector(f"{prefix}.merger.post_projection_norm.bias", (out,), 0.1, torch.bfloat16)
    yield _matrix(f"{prefix}.merger.gate_proj.weight", vision["projection_intermediate_size"], out)
    yield _matrix(f"{prefix}.merger.up_proj.weight", vision["projection_intermediate_size"], out)
    yield _matrix(f"{prefix}.merger.down_proj.weight", out, vision["projection_intermediate_size"])


def _biased(prefix: str, rows: int, columns: int) -> Iterator[TensorPlan]:
    yield _matrix(f"{prefix}.weight", rows, columns)
    yield _vector(f"{prefix}.bias", (rows,), 0.1, torch.bfloat16)
