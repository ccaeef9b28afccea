# SPDX-License-Identifier: Apache-2.0
"""Defaults of the engine TensorFold that follow from other settings: the recipe's derivations as pure functions.

Each returns a value; `fill` applies them in their order and says in words why a value is what it is. Private to the
collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._tensorfold_releases import (
    ABLIT_ID,
    DRAFTER_ID,
    RELEASES,
    REVISIONS,
    at_least,
)

NATIVE_WINDOW = 1048576
SERVED_NAME = "GLM-5.3-Flash-EXL3"
CONTAINER_NAME = "glm53-flash-tf"
BASE_RESERVE_GIB = 14.5
# 16 KiB a row of a verify window in a gather; the usual limit holds 32 rows.
ROCE_KB_PER_ROW = 16
USUAL_ROCE_MAX_KB = 512
USUAL_WINDOW_ROWS = 32
STOP_GRACE_S = 30


def drafter(purpose: str) -> str:
    """Return the drafter that the purpose allows: DFlash2 is for non-commercial use only."""
    return "mtp" if purpose == "commercial" else "dflash2"


def parallel(drafter_: str, world_size: int) -> int:
    """Return how many requests are decoded at once; only DFlash2 drafts for several."""
    if drafter_ != "dflash2":
        return 1
    return 8 if world_size > 2 else 4


def context(kv: str, drafter_: str, vision: bool, dense: str) -> int:
    """Return the window in tokens that is known to fit beside the other choices."""
    if kv == "fp8":
        return NATIVE_WINDOW
    if drafter_ == "mtp":
        return 524288
    return 163840 if vision and dense in ("fp8", "bf16") else 196608


def window_rows(parallel_: int) -> int:
    """Return the rows of all requests' verify windows together."""
    return 64 if parallel_ > 4 else USUAL_WINDOW_ROWS


def roce_max_kb(wanted: int, rows: int) -> int:
    """Return the largest gather in KiB that goes over RoCE: the usual value grows with the window, another is kept."""
    return rows * ROCE_KB_PER_ROW if wanted == USUAL_ROCE_MAX_KB and rows > USUAL_WINDOW_ROWS else wanted


def memory_reserve_gib(parallel_: int, rows: int) -> float:
    """Return the host memory in GiB that the engine leaves alone; requests past 4 and rows past 32 need more."""
    # The growth is rounded first, in binary, as the recipe does: 0.95 becomes 0.9.
    growth = round(0.95 * max(0, parallel_ - 4) + 0.04 * max(0, rows - USUAL_WINDOW_ROWS), 1)
    return round(BASE_RESERVE_GIB + growth, 1)


def comm(link: str, world_size: int) -> str:
    """Return what carries the small gathers: RDMA writes between two Sparks whose link has it."""
    return "nccl" if world_size > 2 or link in ("tcp", "loopback") else "roce"


def kv_pool_gib(world_size: int) -> float:
    """Return the cap of the shared pool beyond the window in GiB."""
    return 32.0 if world_size > 2 else 12.5


def stop_timeout(spill_gib: float, spill_flush_s: float) -> int:
    """Return the grace of a stop in seconds: with the spill tier a clean stop writes first."""
    return int(spill_flush_s) + STOP_GRACE_S if spill_gib else STOP_GRACE_S


def revision(repository: str) -> str:
    """Return the pin that belongs to a repository, empty where none does."""
    return REVISIONS.get(repository, "")


def fill(settings: Mapping[str, Any], world_size: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of one host with every None derived that has a derivation, and why, by short name."""
    filled = dict(settings)
    why: dict[str, str] = {}

    def default(name: str, value: Any, reason: str) -> None:
        if filled[name] is None:
            filled[name] = value
            why[name] = reason

    release = filled["release"]
    default("runtime", "container", "the engine tensorfold runs in containers")
    default("container_name", CONTAINER_NAME, "the recipe's name")
    if not filled["served_name"]:
        filled["served_name"], why["served_name"] = SERVED_NAME, "the recipe's name"
    default("drafter", drafter(filled["purpose"]), f"the purpose is {filled['purpose']}")
    default("parallel", parallel(filled["drafter"], world_size), f"{filled['drafter']} drafts on {world_size} Sparks")
    default("model_id", ABLIT_ID if filled["ablit"] else RELEASES[release].model_id, _model_reason(filled))
    default("model_revision", revision(filled["model_id"]), f"the pin of {filled['model_id']}")
    default("drafter_id", DRAFTER_ID, "the drafter of every release")
    default("drafter_revision", revision(filled["drafter_id"]), f"the pin of {filled['drafter_id']}")
    default("thinking", filled["model_id"] != ABLIT_ID, f"the model is {filled['model_id']}")
    default("comm", comm(filled["link"], world_size), f"{world_size} Sparks, link {filled['link']}")
    window = context(filled["kv"], filled["drafter"], filled["vision"], filled["dense"])
    default("context", window, f"cache {filled['kv']}, drafter {filled['drafter']}, dense {filled['dense']}")
    default("kv_pool_gib", kv_pool_gib(world_size), f"{world_size} Sparks")
    default("cache_entries", 32 if at_least(release, "v1.3.2") else 8, f"release {release}")
    default("multi_lone", not at_least(release, "v1.3.1"), f"release {release}")
    default("roce_wait_s", 300 if at_least(release, "v1.6") else 20, f"release {release}")
    default("nucleus_union", at_least(release, "v1.9"), f"release {release}")
    grows = at_least(release, "v1.5")
    rows = window_rows(filled["parallel"]) if grows else USUAL_WINDOW_ROWS
    default("multi_window", rows, f"{filled['parallel']} requests at once")
    _grow_roce(filled, why)
    reserve = memory_reserve_gib(filled["parallel"], filled["multi_window"]) if grows else BASE_RESERVE_GIB
    reason = f"{filled['parallel']} requests at once, {filled['multi_window']} verify rows, release {release}"
    default("memory_reserve_gib", reserve, reason)
    default("watchdog_s", 300, "what the engine does anyway")
    spill = filled["spill_gib"]
    grace = stop_timeout(spill, filled["spill_flush_s"])
    default("stop_timeout", grace, "a stop that writes to the spill tier" if spill else "no spill tier")
    return filled, why


def _model_reason(settings: Mapping[str, Any]) -> str:
    return "ablit is on" if settings["ablit"] else f"release {settings['release']}"


def _grow_roce(filled: dict[str, Any], why: dict[str, str]) -> None:
    """Let the usual limit grow with the verify window, where it was set to the usual value too: so does the recipe."""
    grown = roce_max_kb(filled["roce_max_kb"], filled["multi_window"])
    if grown != filled["roce_max_kb"]:
        filled["roce_max_kb"] = grown
        why["roce_max_kb"] = f"{filled['multi_window']} verify rows of {ROCE_KB_PER_ROW} KiB"
