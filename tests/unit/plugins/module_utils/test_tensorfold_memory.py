# SPDX-License-Identifier: Apache-2.0
"""Memory, disks and times of a plan: the published figures come out of the formulas."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _estimates
from ansible_collections.sparkpair.serving.plugins.module_utils import _tensorfold_memory as memory

from tests.unit.plugins.module_utils.tensorfold import EXAMPLE, one, plan

PLENTY = {"spark-head": 117.0, "spark-worker": 117.0}


@pytest.mark.parametrize(("entries", "tokens"), [(8, 2922496), (16, 2809856), (32, 2582528)])
def test_the_pool_has_the_published_size(entries: int, tokens: int) -> None:
    assert memory.plan(one(cache_entries=entries), PLENTY)["pool_tokens"] == tokens


def test_the_published_start_of_v1_3_kept_8_prompts() -> None:
    assert plan(release="v1.3")["memory"]["pool_tokens"] == 2922496


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (memory.stored_bytes_per_token("fp8"), 6204),
        (memory.stored_bytes_per_token("bf16"), 11968),
        (memory.bytes_per_token("fp8", 32), 6748),
        (memory.bytes_per_token("fp8", 64), 6780),
        (memory.ENTRY_BYTES, 95625216),
        (memory.pool_tokens(0, 0, 0, 6780, 1792 * 2**20), 276480),
        (memory.pool_tokens(1048576, 0, 32, 6748), 1048576),
    ],
)
def test_the_bytes_are_the_published_ones(found: int, expected: int) -> None:
    assert found == expected


def test_display_memory_joins_the_pool() -> None:
    wide: dict[str, Any] = {"parallel": 8}
    without = memory.plan(one(**wide), PLENTY)["pool_tokens"]
    assert memory.plan(one(display_kv_mib=1792, **wide), PLENTY)["pool_tokens"] - without == 276480


def test_a_share_of_the_pool_keeps_more_prompts_than_the_count() -> None:
    assert memory.kept_entries(32, 0, 12.5 * 2**30) == 32
    assert memory.kept_entries(32, 50, 12.5 * 2**30) == 70
    assert memory.kept_entries(0, 99, 12.5 * 2**30) == memory.kept_entries(0, 75, 12.5 * 2**30)


def test_the_estimate_of_a_default_head_is_the_published_one() -> None:
    head, worker = memory.plan(one(), PLENTY)["ranks"]
    assert head["estimate_gib"] == 88.09
    assert head["estimate_gib"] - worker["estimate_gib"] == pytest.approx(1.8)


def test_a_pool_grows_only_as_far_as_the_smaller_host_has_memory() -> None:
    tight = memory.plan(one(), {"spark-head": 110.0, "spark-worker": 117.0})
    assert tight["fits"]
    assert 1048576 < tight["pool_tokens"] < tight["pool_tokens_cap"] == 2582528


def test_a_window_that_does_not_fit_names_the_largest_that_does() -> None:
    found = memory.plan(one(), {"spark-head": 100.0, "spark-worker": 117.0})
    assert not found["fits"]
    assert 0 < found["largest_window"] < 1048576
    assert found["largest_window"] % 2048 == 0
    again = memory.plan(one(context=found["largest_window"]), {"spark-head": 100.0, "spark-worker": 117.0})
    assert again["fits"]


def test_the_largest_window_leaves_nothing_for_other_prompts() -> None:
    found = memory.plan(one(context=0), {"spark-head": 98.0, "spark-worker": 117.0})
    assert found["window"] == found["largest_window"] == found["pool_tokens"]


def test_a_host_without_the_memory_for_the_weights_fits_no_window() -> None:
    found = memory.plan(one(context=0), {"spark-head": 20.0, "spark-worker": 117.0})
    assert (found["window"], found["fits"]) == (0, False)


def facts(missing: int | None, free: int, image: bool = False, one_disk: bool = True) -> dict[str, Any]:
    disk = {"cache_free_bytes": free * 10**9, "docker_free_bytes": free * 10**9, "one_disk": one_disk}
    return {"weights_missing_bytes": missing, "image_present": image, "disk": disk}


@pytest.mark.parametrize(
    ("rank", "values", "host", "cache", "image", "enough"),
    [
        # Every blob is in the cache already, under another revision: nothing is needed for weights.
        (0, {}, facts(0, 12, image=True), 0.0, 0.0, True),
        (0, {}, facts(10 * 10**9, 20, image=True), 15.0, 0.0, True),
        (0, {}, facts(10 * 10**9, 40), 15.0, 35.0, False),
        (0, {}, facts(10 * 10**9, 40, one_disk=False), 15.0, 35.0, True),
        (0, {}, facts(None, 150, image=True), 180.0, 0.0, False),
        (1, {"worker_weights": "nfs"}, facts(None, 40), 0.0, 35.0, True),
    ],
)
def test_a_disk_needs_what_is_missing(
    rank: int, values: dict[str, Any], host: dict[str, Any], cache: float, image: float, enough: bool
) -> None:
    found = _estimates.disk(one(**values), rank, host)
    assert (found["cache_needs_gb"], found["image_needs_gb"], found["enough"]) == (cache, image, enough)


def steps(**changes: Any) -> list[str]:
    recorded = copy.deepcopy(EXAMPLE)
    for host in recorded["hosts"].values():
        host.update(copy.deepcopy(changes))
    return [step["step"] for step in plan(recorded)["time"]]


def test_a_first_start_lists_every_long_step_and_a_later_one_only_the_load() -> None:
    assert [step.split()[0] for step in steps()] == ["pull", "download", "copy", "compile", "load"]
    assert steps(image_patches="a1897d591f70", weights={"missing_bytes": 0}) == ["load the weights"]
