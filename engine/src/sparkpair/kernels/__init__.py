# SPDX-License-Identifier: Apache-2.0
"""The operations of the forward pass, one function each: the single place where the model meets a backend.

The model calls these names and nothing below them. `reference` runs on any device and is the specification: a faster
implementation has the same signature and must pass the same tests.
"""

from __future__ import annotations

from sparkpair.kernels.reference.draft import attend_groups, dynamic_convolution, position_rotation
from sparkpair.kernels.reference.dsa import attend_latents, index_scores, pool_keys, select_tokens
from sparkpair.kernels.reference.exl3 import exl3_effective
from sparkpair.kernels.reference.experts import add_shared, route, routed_experts
from sparkpair.kernels.reference.fp8_rows import ROW_OVERHEAD as FP8_ROW_OVERHEAD
from sparkpair.kernels.reference.fp8_rows import decode_fp8_rows, encode_fp8_rows
from sparkpair.kernels.reference.hyper import hyper_collapse, hyper_spread, hyper_weights
from sparkpair.kernels.reference.kda import kda_chunked, kda_gates, kda_recurrent, short_convolution
from sparkpair.kernels.reference.linear import linear
from sparkpair.kernels.reference.rows import l2_normalise, layer_norm, rms_norm, rms_norm_gated, swiglu
from sparkpair.kernels.reference.tiles import sigmoid
from sparkpair.kernels.reference.vision import attend_all, axial_rotation, biased_linear, gelu, rotate

__all__ = [
    "FP8_ROW_OVERHEAD",
    "add_shared",
    "attend_all",
    "attend_groups",
    "attend_latents",
    "axial_rotation",
    "biased_linear",
    "decode_fp8_rows",
    "dynamic_convolution",
    "encode_fp8_rows",
    "exl3_effective",
    "gelu",
    "hyper_collapse",
    "hyper_spread",
    "hyper_weights",
    "index_scores",
    "kda_chunked",
    "kda_gates",
    "kda_recurrent",
    "l2_normalise",
    "layer_norm",
    "linear",
    "pool_keys",
    "position_rotation",
    "rms_norm",
    "rms_norm_gated",
    "rotate",
    "route",
    "routed_experts",
    "select_tokens",
    "short_convolution",
    "sigmoid",
    "swiglu",
]
