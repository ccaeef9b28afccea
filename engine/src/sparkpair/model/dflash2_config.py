# SPDX-License-Identifier: Apache-2.0
"""The configuration of a DFlash2 drafter: read from its config.json and held against the model it drafts for."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import cut_width, share
from sparkpair.errors import UserError
from sparkpair.model.config import Fields, TextConfig, load_document

ARCHITECTURE = "DFlash2DraftModel"


@dataclasses.dataclass(frozen=True, slots=True)
class DFlash2Config:
    """Dimensions of a drafter. `taps` are layers of the target, whose output streams make the context."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    window: int
    block_size: int
    mask_id: int
    taps: tuple[int, ...]
    conv_group: int
    selector_rank: int
    selector_top_k: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor by name with its whole shape."""
        width, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {
            "fc.weight": (width, len(self.taps) * width),
            "hidden_norm.weight": (width,),
            "norm.weight": (width,),
            "candidate_selector.hidden_projection.weight": (self.selector_rank, width),
            "candidate_selector.predecessor_codebook": (self.vocab_size, self.selector_rank),
            "candidate_selector.successor_codebook": (self.vocab_size, self.selector_rank),
        }
        for index in range(self.num_layers):
            layer = f"layers.{index}"
            found |= {
                f"{layer}.input_layernorm.weight": (width,),
                f"{layer}.post_attention_layernorm.weight": (width,),
                f"{layer}.self_attn.q_proj.weight": (queries, width),
                f"{layer}.self_attn.k_proj.weight": (keys, width),
                f"{layer}.self_attn.v_proj.weight": (keys, width),
                f"{layer}.self_attn.o_proj.weight": (width, queries),
                f"{layer}.self_attn.q_norm.weight": (self.head_dim,),
                f"{layer}.self_attn.k_norm.weight": (self.head_dim,),
                f"{layer}.mlp.gate_proj.weight": (inner, width),
                f"{layer}.mlp.up_proj.weight": (inner, width),
                f"{layer}.mlp.down_proj.weight": (width, inner),
            }
            for kind in ("attention", "mlp"):
                found[f"{layer}.{kind}_conv.base_kernel"] = (2, 2, width)
                found[f"{layer}.{kind}_conv.kernel_projection.weight"] = (4 * width // self.conv_group, width)
        return found

    def part(self, name: str, world: int, rank: int) -> list[slice]:
        """A rank's part of a tensor along every axis: whole key heads with their queries, and widths of the mlp."""
        parts = [slice(0, width) for width in self.shapes()[name]]
        leaf = name.removesuffix(".weight").rpartition(".")[2]
        if leaf in ("q_proj", "k_proj", "v_proj", "o_proj"):
            heads = share(self.num_kv_heads, world, rank)
            width = self.head_dim * (self.num_heads // self.num_kv_heads if leaf in ("q_proj", "o_proj") else 1)
            parts[leaf == "o_proj"] = slice(heads.start * width, heads.stop * width)
        elif leaf in ("gate_proj", "up_proj", "down_proj"):
            parts[leaf == "down_proj"] = cut_width(self.intermediate_size, world, rank)
        return parts


def load_dflash2_config(directory: pathlib.Path, target: TextConfig, world: int) -> DFlash2Config:
    """Read and check a drafter's configuration. Raises UserError naming the file, the field and what would fit."""
    document = load_document(directory)
    source = f"--drafter: {directory / 'config.json'}"
    fields = Fields(source, document)
    if document.get("architectures") != [ARCHITECTURE]:
        raise fields.fail("architectures", document.get("architectures"), f"['{ARCHITECTURE}']")
    inner = _object(fields, "dflash_config")
    rope = _object(fields, "rope_parameters")
    config = DFlash2Config(
        hidden_size=fields.integer("hidden_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=fields.integer("num_attention_heads"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-5),
        rope_theta=rope.number("rope_theta", 10000.0),
        window=fields.integer("sliding_window"),
        block_size=inner.integer("block_size", least=2),
        mask_id=inner.integer("mask_token_id", least=0),
        taps=_taps(inner, target),
        conv_group=inner.integer("conv_group_size"),
        selector_rank=inner.integer("selector_rank"),
        selector_top_k=inner.integer("selector_top_k"),
    )
    _check_target(fields, inner, config, target)
    _check_form(fields, inner, config)
    if config.num_kv_heads < world:
        raise UserError(f"--tp {world}: the drafter has only {config.num_kv_heads} key heads to divide")
    return config


def _object(fields: Fields, name: str) -> Fields:
    found = fields.values.get(name)
    if not isinstance(found, dict):
        raise fields.fail(name, found, "an object")
    values: dict[str, Any] = found
    return Fields(f"{fields.source}: {name}", values)


def _taps(inner: Fields, target: TextConfig) -> tuple[int, ...]:
    found = inner.values.get("target_layer_ids")
    layers = range(target.num_layers)
    if (
        not isinstance(found, list)
        or not found
        or found != sorted(set(found))
        or any(tap not in layers for tap in found)
    ):
        raise inner.fail(
            "target_layer_ids", found, f"layers of the model in ascending order, from 0 to {target.num_layers - 1}"
        )
    return tuple(found)


def _check_target(fields: Fields, inner: Fields, config: DFlash2Config, target: TextConfig) -> None:
    """The drafter reads the model's streams, embedding and head, so their sizes must be the same."""
    for name, found, wanted in (
        ("hidden_size", config.hidden_size, target.hidden_size),
        ("vocab_size", config.vocab_size, target.vocab_size),
        ("num_target_layers", fields.values.get("num_target_layers"), target.num_layers),
    ):
        if found != wanted:
            raise fields.fail(name, found, f"{wanted} as in the model: this drafter is of another model")
    if config.mask_id >= target.vocab_size:
        raise inner.fail("mask_token_id", config.mask_id, f"a row of the model's embedding, below {target.vocab_size}")


def _check_form(fields: Fields, inner: Fields, config: DFlash2Config) -> None:
    """Refuse what there is no code for."""
    if fields.values.get("layer_types") != ["sliding_attention"] * config.num_layers:
        raise fields.fail("layer_types", fields.values.get("layer_types"), "sliding_attention in every layer")
    if fields.values.get("is_causal", False) is not False:
        raise fields.fail("is_causal", fields.values["is_causal"], "false")
    if inner.values.get("conv_kernel_size", 2) != 2:
        raise inner.fail("conv_kernel_size", inner.values["conv_kernel_size"], "2")
    if config.num_heads % config.num_kv_heads:
        raise fields.fail("num_attention_heads", config.num_heads, f"a multiple of {config.num_kv_heads} key heads")
    if config.hidden_size % config.conv_group:
        raise inner.fail("conv_group_size", config.conv_group, f"a divisor of hidden_size ({config.hidden_size})")
    if config.head_dim % 2:
        raise fields.fail("head_dim", config.head_dim, "an even number")
    if config.selector_top_k > config.vocab_size:
        raise inner.fail("selector_top_k", config.selector_top_k, f"at most vocab_size ({config.vocab_size})")


def check_tensors(checkpoint: Checkpoint, config: DFlash2Config) -> None:
    """Raise UserError naming the first tensor that is missing or of another shape than the configuration says."""
    for name, shape in config.shapes().items():
        found = checkpoint.entry(name).shape
        if found != shape:
            raise UserError(
                f"--drafter: {checkpoint.entry(name).path}: {name} is {found}, its config.json says {shape}"
            )
