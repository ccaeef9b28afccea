# SPDX-License-Identifier: Apache-2.0
"""What a start needs of disks, and about how long it takes: sizes from what is missing, times from stated speeds.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GB = 10**9
CHECKPOINT_GB = 175.62
DRAFTER_GB = 2.3
IMAGE_PULL_GB = 10.0
# Beyond what is missing, so that a disk is not filled to the last byte.
MARGIN_GB = 5
# The rates behind the times: a good home line, whole files over the link to a fresh disk, and a disk's own.
DOWNLOAD_MB_S = 100.0
COPY_MB_S = 450.0
LOAD_MIN = (2, 6)
COMPILE_MIN = 3


def weights_gb(settings: Mapping[str, Any]) -> float:
    """Return the size of what a host serves from, in GB."""
    return CHECKPOINT_GB + (DRAFTER_GB if settings["drafter"] == "dflash2" else 0.0)


def missing_gb(settings: Mapping[str, Any], facts: Mapping[str, Any]) -> float:
    """Return what a host lacks of the weights in GB; what nobody could count is counted as all of it."""
    missing = facts["weights_missing_bytes"]
    return weights_gb(settings) if missing is None else missing / GB


def disk(settings: Mapping[str, Any], rank: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a host needs free in GB and whether it has that: in the Hub cache and under Docker's directory.

    `facts` has `weights_missing_bytes` (None when it cannot be computed), `image_present`, and `disk` with
    `cache_free_bytes`, `docker_free_bytes` and `one_disk` (both are the same one, and needs add up).
    """
    own = rank == 0 or settings["worker_weights"] == "copy"
    missing = facts["weights_missing_bytes"]
    if not own or missing == 0:
        cache = 0.0
    elif missing is None:
        cache = float(settings["download_free_gb"])
    else:
        cache = missing / GB + MARGIN_GB
    image = 0.0 if facts["image_present"] else float(settings["image_free_gb"])
    cache_free, docker_free = (facts["disk"][name] / GB for name in ("cache_free_bytes", "docker_free_bytes"))
    together = cache + image if facts["disk"]["one_disk"] else cache
    enough = cache_free >= together and docker_free >= image
    return {
        "cache_needs_gb": round(cache, 1),
        "cache_free_gb": round(cache_free, 1),
        "image_needs_gb": round(image, 1),
        "docker_free_gb": round(docker_free, 1),
        "one_disk": facts["disk"]["one_disk"],
        "enough": enough,
    }


def minutes(settings: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps of a start in order, each with `step`, `minutes` and what the estimate `assumes`.

    `hosts` holds the facts of every host, as for `disk`, in rank order.
    """
    head, *workers = hosts.values()
    steps = []
    if not all(facts["image_present"] for facts in hosts.values()):
        steps.append(_step("pull the image and bring it to the workers", IMAGE_PULL_GB, DOWNLOAD_MB_S))
    if (missing := missing_gb(settings, head)) > 0:
        steps.append(_step(f"download {missing:.1f} GB of weights to the head", missing, DOWNLOAD_MB_S))
    copies = [missing_gb(settings, facts) for facts in workers] if settings["worker_weights"] == "copy" else []
    if sum(copies) > 0:
        steps.append(_step(f"copy {sum(copies):.1f} GB of weights over the link", sum(copies), COPY_MB_S))
    if not all(facts["image_present"] for facts in hosts.values()):
        steps.append({"step": "compile kernels, once for an image", "minutes": COMPILE_MIN, "assumes": "a few minutes"})
    load = f"{LOAD_MIN[0]} to {LOAD_MIN[1]} minutes"
    return [*steps, {"step": "load the weights", "minutes": LOAD_MIN[1], "assumes": load}]


def _step(step: str, size_gb: float, mb_s: float) -> dict[str, Any]:
    return {"step": step, "minutes": round(size_gb * 1000 / mb_s / 60, 1), "assumes": f"{mb_s:g} MB/s"}
