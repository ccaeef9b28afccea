# SPDX-License-Identifier: Apache-2.0
"""Small random configurations that together cross every boundary of the architecture."""

from __future__ import annotations

import random
from typing import Any

POOL_SIZES = (1, 4, 16)


def random_text_config(seed: int) -> dict[str, Any]:
    """Overrides of `text_config` for one seed: schedule, head counts, widths, pool size, expert groups vary."""
    choose = random.Random(seed)
    layers = choose.choice([4, 5, 6])
    attention = [choose.choice(["linear_attention", "deepseek_sparse_attention"]) for _ in range(layers)]
    # Both kinds occur in every configuration, in both orders over the seeds.
    attention[0], attention[-1] = choose.sample(["linear_attention", "deepseek_sparse_attention"], 2)
    kpool = POOL_SIZES[seed % len(POOL_SIZES)]
    experts = choose.choice([4, 6, 8])
    return {
        "vocab_size": 320,
        "hidden_size": choose.choice([32, 48, 64]),
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": 0,
        "layer_types": attention,
        "mlp_layer_types": [choose.choice(["dense", "sparse"]) for _ in range(layers - 1)] + ["sparse"],
        "num_attention_heads": choose.choice([3, 4, 6]),
        "q_lora_rank": choose.choice([16, 24]),
        "kv_lora_rank": choose.choice([16, 32]),
        "qk_nope_head_dim": choose.choice([8, 16]),
        "v_head_dim": choose.choice([8, 12]),
        "index_n_heads": choose.choice([16, 24]),
        "index_head_dim": choose.choice([8, 16]),
        "index_topk": kpool * choose.choice([2, 4]),
        "index_kpool": kpool,
        "linear_attn_config": {"num_heads": choose.choice([3, 4]), "head_dim": choose.choice([8, 16])},
        "intermediate_size": choose.choice([40, 64]),
        "moe_intermediate_size": choose.choice([16, 24]),
        "n_routed_experts": experts,
        "num_experts_per_tok": choose.choice([2, 3]),
        "hc_mult": choose.choice([2, 4]),
    }
