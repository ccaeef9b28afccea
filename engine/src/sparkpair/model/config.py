# SPDX-License-Identifier: Apache-2.0
"""The configuration of a `glm5_next` checkpoint: read from config.json, completed, and checked.

Field names follow the released config.json. Where transformers spells a field differently (linear attention, the
word for DSA layers), both spellings are read.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, Literal

from sparkpair.errors import UserError

Attention = Literal["kda", "dsa"]
FeedForward = Literal["dense", "sparse"]

_ATTENTION_WORDS: dict[str, Attention] = {
    "linear_attention": "kda",
    "deepseek_sparse_attention": "dsa",
    "indexed_attention": "dsa",
    "full_attention": "dsa",
}


@dataclasses.dataclass(frozen=True, slots=True)
class TextConfig:
    """Dimensions and switches of the text model. Widths in elements, epsilons as stated by the checkpoint."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    attention: tuple[Attention, ...]
    feed_forward: tuple[FeedForward, ...]
    mtp_layers: int
    rms_norm_eps: float
    max_position_embeddings: int
    # MLA with DSA
    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_head_dim: int
    v_head_dim: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    index_kpool: int
    index_always_select_tail: bool
    # KDA
    linear_heads: int
    linear_head_dim: int
    conv_kernel: int
    gate_lower_bound: float | None
    # feed-forward
    intermediate_size: int
    moe_intermediate_size: int
    num_experts: int
    experts_per_token: int
    shared_experts: int
    expert_groups: int
    expert_groups_kept: int
    norm_topk_prob: bool
    routed_scaling: float
    swiglu_limit: float
    # hyper-connections
    hc_mult: int
    hc_eps: float
    hc_iterations: int
    eos_ids: tuple[int, ...]

    @property
    def dsa_layers(self) -> int:
        """Number of DSA layers of the backbone."""
        return self.attention.count("dsa")

    @property
    def kda_layers(self) -> int:
        """Number of KDA layers of the backbone."""
        return self.attention.count("kda")


class Fields:
    """Reads typed fields of one JSON object and names the field, the file and the value when one is wrong."""

    def __init__(self, source: str, values: dict[str, Any]) -> None:
        self.source = source
        self.values = values

    def fail(self, name: str, found: object, wanted: str) -> UserError:
        return UserError(f"{self.source}: {name} is {found!r}, expected {wanted}")

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        found = self.values.get(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise self.fail(name, found, f"a whole number of at least {least}")
        return found

    def number(self, name: str, default: float) -> float:
        found = self.values.get(name, default)
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise self.fail(name, found, "a number")
        return float(found)

    def words(self, name: str, allowed: dict[str, Any], count: int) -> list[Any] | None:
        found = self.values.get(name)
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != count or any(word not in allowed for word in found):
            raise self.fail(name, found, f"a list of {count} words out of {', '.join(sorted(allowed))}")
        return [allowed[word] for word in found]


def parse_text_config(document: dict[str, Any], source: str) -> TextConfig:
    """Build a TextConfig from a whole config.json (with `text_config` inside) or from a flat text configuration.

    Raises UserError naming `source`, the field, what was found and what was expected.
    """
    nested = document.get("text_config", document)
    if not isinstance(nested, dict):
        raise UserError(f"{source}: text_config is not an object")
    fields = Fields(source, nested)
    kind = nested.get("model_type", document.get("model_type", "glm5_next_text"))
    if kind not in ("glm5_next", "glm5_next_text"):
        raise UserError(f"{source}: model_type is {kind!r}, this engine serves glm5_next")
    layers = fields.integer("num_hidden_layers")
    linear = _linear_fields(fields)
    attention = fields.words("layer_types", _ATTENTION_WORDS, layers)
    feed_forward = fields.words("mlp_layer_types", {"dense": "dense", "sparse": "sparse"}, layers)
    dense_first = fields.integer("first_k_dense_replace", min(3, layers), least=0)
    _check_unsupported(fields, layers)
    rank = fields.integer
    config = TextConfig(
        vocab_size=rank("vocab_size"),
        hidden_size=rank("hidden_size"),
        num_layers=layers,
        attention=tuple(attention or ["dsa" if index % 4 == 3 else "kda" for index in range(layers)]),
        feed_forward=tuple(feed_forward or ["dense" if index < dense_first else "sparse" for index in range(layers)]),
        mtp_layers=rank("num_nextn_predict_layers", 0, least=0),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-5),
        max_position_embeddings=rank("max_position_embeddings", 1_048_576),
        num_heads=rank("num_attention_heads"),
        q_lora_rank=rank("q_lora_rank"),
        kv_lora_rank=rank("kv_lora_rank"),
        qk_head_dim=rank("qk_nope_head_dim"),
        v_head_dim=rank("v_head_dim"),
        index_heads=rank("index_n_heads"),
        index_head_dim=rank("index_head_dim"),
        index_topk=rank("index_topk"),
        index_kpool=rank("index_kpool", 4),
        index_always_select_tail=bool(nested.get("index_kpool_always_select_tail", True)),
        linear_heads=linear.integer("num_heads"),
        linear_head_dim=linear.integer("head_dim"),
        conv_kernel=linear.integer("short_conv_kernel_size", 4),
        gate_lower_bound=None
        if linear.values.get("gate_lower_bound", -5.0) is None
        else linear.number("gate_lower_bound", -5.0),
        intermediate_size=rank("intermediate_size"),
        moe_intermediate_size=rank("moe_intermediate_size"),
        num_experts=rank("n_routed_experts"),
        experts_per_token=rank("num_experts_per_tok"),
        shared_experts=rank("n_shared_experts", 1, least=0),
        expert_groups=rank("n_group", 1),
        expert_groups_kept=rank("topk_group", 1),
        norm_topk_prob=bool(nested.get("norm_topk_prob", True)),
        routed_scaling=fields.number("routed_scaling_factor", 2.5),
        swiglu_limit=fields.number("swiglu_limit", 10.0),
        hc_mult=rank("hc_mult", 4),
        hc_eps=fields.number("hc_eps", 1e-6),
        hc_iterations=rank("hc_sinkhorn_iters", 20),
        eos_ids=_eos_ids(fields, document),
    )
    _check_consistency(fields, config)
    return config


def _linear_fields(fields: Fields) -> Fields:
    """The linear-attention object of the released file, or the same fields under transformers' names."""
    found = fields.values.get("linear_attn_config")
    if isinstance(found, dict):
        return Fields(f"{fields.source}: linear_attn_config", found)
    if found is not None:
        raise fields.fail("linear_attn_config", found, "an object")
    names = {
        "num_heads": "linear_num_heads",
        "head_dim": "linear_head_dim",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
        "gate_lower_bound": "linear_lower_bound",
    }
    return Fields(
        fields.source, {ours: fields.values[theirs] for ours, theirs in names.items() if theirs in fields.values}
    )


def _eos_ids(fields: Fields, document: dict[str, Any]) -> tuple[int, ...]:
    found = fields.values.get("eos_token_id", document.get("eos_token_id"))
    if found is None:
        return ()
    ids = found if isinstance(found, list) else [found]
    if any(not isinstance(token, int) or isinstance(token, bool) for token in ids):
        raise fields.fail("eos_token_id", found, "a token id or a list of token ids")
    return tuple(ids)


def _check_unsupported(fields: Fields, layers: int) -> None:
    """Refuse switches this engine has no code for; serving them silently would give another model's answers."""
    if fields.values.get("qk_rope_head_dim", 0):
        raise fields.fail("qk_rope_head_dim", fields.values["qk_rope_head_dim"], "0: glm5_next has no rotary part")
    shared = fields.words("indexer_types", {"full": "full", "shared": "shared"}, layers) or []
    if "shared" in shared:
        raise fields.fail("indexer_types", "shared", "full in every layer: borrowed selections are not supported")
    for name, wanted in (
        ("hidden_act", "silu"),
        ("tie_word_embeddings", False),
        ("attention_bias", False),
        ("scoring_func", "sigmoid"),
    ):
        if fields.values.get(name, wanted) != wanted:
            raise fields.fail(name, fields.values[name], repr(wanted))


def _check_consistency(fields: Fields, config: TextConfig) -> None:
    if config.index_topk % config.index_kpool:
        raise fields.fail("index_topk", config.index_topk, f"a multiple of index_kpool ({config.index_kpool})")
    kv_heads = fields.values.get("num_key_value_heads", config.num_heads)
    if kv_heads != config.num_heads:
        raise fields.fail("num_key_value_heads", kv_heads, f"num_attention_heads ({config.num_heads})")
    if config.experts_per_token > config.num_experts:
        raise fields.fail(
            "num_experts_per_tok", config.experts_per_token, f"at most n_routed_experts ({config.num_experts})"
        )
    if config.num_experts % config.expert_groups:
        raise fields.fail("n_group", config.expert_groups, f"a divisor of n_routed_experts ({config.num_experts})")
    if config.expert_groups_kept > config.expert_groups:
        raise fields.fail("topk_group", config.expert_groups_kept, f"at most n_group ({config.expert_groups})")


def load_document(directory: pathlib.Path) -> dict[str, Any]:
    """The parsed config.json of a checkpoint directory. Raises UserError naming the path."""
    path = directory / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{directory} is not a checkpoint: there is no config.json in it. Give the directory that holds "
            "config.json, the tokenizer and the .safetensors files."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise UserError(f"{path} is not a JSON object")
    return document


def load_text_config(directory: pathlib.Path) -> TextConfig:
    """Read and check the text configuration of a checkpoint directory. Raises UserError naming the path."""
    return parse_text_config(load_document(directory), str(directory / "config.json"))
