# SPDX-License-Identifier: Apache-2.0
"""What a rank of TensorFold needs of its host's memory: the window, the shared pool, the startup estimate.

Pure arithmetic on bytes and tokens, for two ranks. Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._tensorfold_defaults import NATIVE_WINDOW

GIB = 2**30
MIB = 2**20
BLOCK = 2048  # Extents of the pool, and so its size, are whole blocks of this many tokens.

_ATTENTION_LAYERS = 11
_LATENT = {"fp8": 528, "bf16": 1024}
_POOLED_KEY = {"fp8": 144, "bf16": 256}
_TOKENS_A_POOLED_KEY = 4
# Selection scratch: 512 query rows of fp32 scores for every pooled row, and as many verify rows as the window has.
_SCRATCH_ROWS = 512
_SCORE_BYTES = 4

# Of a request: the recurrent states in two parities, the convolutions' last rows, the indexer's and the drafter's ring.
_SLOT = 145_113_088
_INDEXER_RING = 6_127_616
_DRAFTER_RING = 22_282_240
# A kept prompt reserves one parity and the drafter's window.
ENTRY_BYTES = _SLOT // 2 + 22 * MIB
_SHARE_CEILING_PCT = 75

# The published estimate of rank 0 at the defaults, from which everything that a setting moves is taken apart.
_PUBLISHED_GIB = 88.09
_TOWER_GIB = 1.05 + 0.75
_MTP_GIB = 1.77
# Dense weights of a rank as stored are about 9.7 GiB of 16 bits; q4 has 4.5 with its scales.
_DENSE_GIB = {"bf16": 9.7, "fp8": 9.7 * 8 / 16, "q4": 9.7 * 4.5 / 16}


def stored_bytes_per_token(kv: str, drafter: str = "dflash2") -> int:
    """Return the bytes of a token in the cache of one rank; the drafter mtp caches one more layer."""
    layers = _ATTENTION_LAYERS + (1 if drafter == "mtp" else 0)
    return layers * _LATENT[kv] + layers * _POOLED_KEY[kv] // _TOKENS_A_POOLED_KEY


def bytes_per_token(kv: str, rows: int, drafter: str = "dflash2") -> int:
    """Return the bytes that a token of the pool costs one rank, scratch included; `rows` are the verify rows."""
    return stored_bytes_per_token(kv, drafter) + (_SCRATCH_ROWS + rows) * _SCORE_BYTES // _TOKENS_A_POOLED_KEY


def pool_tokens(window: int, cache_bytes: float, entries: int, per_token: int, display_bytes: int = 0) -> int:
    """Return the tokens of the shared pool: the window, and what the cache holds beside it after the kept prompts.

    Display memory joins the pool in whole blocks of its own.
    """
    extra = int(max(0.0, cache_bytes - entries * ENTRY_BYTES) // per_token)
    return _blocks(window + extra) + _blocks(display_bytes // per_token)


def kept_entries(entries: int, share_pct: float, cache_bytes: float) -> int:
    """Return how many kept prompts are reserved: the count, or what the share of the cache makes if that is more."""
    return max(entries, int(cache_bytes * min(share_pct, _SHARE_CEILING_PCT) / 100 // ENTRY_BYTES))


def fixed_gib(settings: Mapping[str, Any], rank: int) -> float:
    """Return what a rank needs before the first token of a window, by the published estimate: weights and requests."""
    published = bytes_per_token("fp8", 32) * NATIVE_WINDOW + 4 * _request_bytes("dflash2")
    base = _PUBLISHED_GIB - published / GIB - _TOWER_GIB - _DENSE_GIB["q4"]
    tower = _TOWER_GIB if rank == 0 and settings["vision"] else 0.0
    mtp = _MTP_GIB if settings["drafter"] == "mtp" or (settings["mtp"] == "1" and settings["parallel"] == 1) else 0.0
    requests = settings["parallel"] * _request_bytes(settings["drafter"]) / GIB
    return base + tower + mtp + _DENSE_GIB[settings["dense"]] + requests


def largest_window(budget_gib: float, fixed: float, per_token: int) -> int:
    """Return the largest window in tokens that fits beside what is fixed, 0 when none does."""
    return min(NATIVE_WINDOW, _blocks(int(max(0.0, (budget_gib - fixed) * GIB) // per_token)))


def plan(settings: Mapping[str, Any], available: Mapping[str, float]) -> dict[str, Any]:
    """Return the memory plan of a pair from effective settings and every host's MemAvailable in GiB, in rank order.

    The smallest rank decides: `window` (the one that was asked for, or the largest that fits when that is 0), `fits`,
    `pool_tokens` (as far as the memory lets the pool grow; `pool_tokens_cap` is where the setting ends it), and in
    `ranks` each host's share. Figures in GiB are estimates.
    """
    per_token = bytes_per_token(settings["kv"], settings["multi_window"], settings["drafter"])
    cache = settings["kv_pool_gib"] * GIB
    entries = kept_entries(settings["cache_entries"], settings["cache_share_pct"], cache)
    ranks = []
    for rank, (host, available_gib) in enumerate(available.items()):
        budget = available_gib - settings["memory_reserve_gib"]
        fixed = fixed_gib(settings, rank)
        ranks.append(
            {
                "host": host,
                "available_gib": round(available_gib, 2),
                "budget_gib": round(budget, 2),
                "fixed_gib": round(fixed, 2),
                "largest_window": largest_window(budget, fixed, per_token),
            }
        )
    fitting = min(one["largest_window"] for one in ranks)
    window = settings["context"] or fitting
    for one in ranks:
        one["estimate_gib"] = round(one["fixed_gib"] + window * per_token / GIB, 2)
        one["left_for_pool_gib"] = round(max(0.0, one["budget_gib"] - one["estimate_gib"]), 2)
    # With the largest window nothing is left to keep other prompts in.
    grown = min([cache, *(one["left_for_pool_gib"] * GIB for one in ranks)]) if settings["context"] else 0
    display = settings["display_kv_mib"] * MIB
    return {
        "window": window,
        "fits": 0 < window <= fitting,
        "largest_window": fitting,
        "pool_tokens": pool_tokens(window, grown, entries, per_token, display),
        "pool_tokens_cap": pool_tokens(window, cache, entries, per_token, display),
        "bytes_per_token": per_token,
        "kept_entries": entries,
        "kept_entries_gib": round(entries * ENTRY_BYTES / GIB, 2),
        "reserve_gib": settings["memory_reserve_gib"],
        "ranks": ranks,
    }


def _request_bytes(drafter: str) -> int:
    return _SLOT + _INDEXER_RING + (_DRAFTER_RING if drafter == "dflash2" else 0)


def _blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK
