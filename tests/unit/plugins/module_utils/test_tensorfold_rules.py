# SPDX-License-Identifier: Apache-2.0
"""TensorFold's derived defaults and its refusals, as the published tables have them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _licences,
    _tensorfold_defaults,
    _tensorfold_releases,
    _tensorfold_rules,
)

from tests.unit.plugins.module_utils.settings_files import effective, given
from tests.unit.plugins.module_utils.tensorfold import HOSTS, one, refused, settings_of

RESERVE = {
    4: (14.5, 14.8, 15.1, 15.5, 15.8),
    5: (15.4, 15.8, 16.1, 16.4, 16.7),
    6: (16.4, 16.7, 17.0, 17.4, 17.7),
    7: (17.3, 17.7, 18.0, 18.3, 18.6),
    8: (18.3, 18.6, 18.9, 19.3, 19.6),
}


@pytest.mark.parametrize("parallel", RESERVE)
def test_the_reserve_grows_as_published_in_its_own_rounding(parallel: int) -> None:
    found = tuple(_tensorfold_defaults.memory_reserve_gib(parallel, rows) for rows in (32, 40, 48, 56, 64))
    assert found == RESERVE[parallel]


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ({}, "context", 1048576),
        ({"kv": "bf16", "drafter": "mtp"}, "context", 524288),
        ({"kv": "bf16", "dense": "fp8"}, "context", 163840),
        ({"kv": "bf16", "dense": "bf16"}, "context", 163840),
        ({"kv": "bf16", "dense": "bf16", "vision": False}, "context", 196608),
        ({"kv": "bf16"}, "context", 196608),
        ({"context": 0}, "context", 0),
        ({}, "parallel", 4),
        ({"drafter": "mtp"}, "parallel", 1),
        ({"purpose": "commercial"}, "parallel", 1),
        ({"purpose": "commercial"}, "drafter", "mtp"),
        ({"parallel": 8}, "multi_window", 64),
        ({"parallel": 8}, "memory_reserve_gib", 19.6),
        ({"parallel": 8}, "roce_max_kb", 1024),
        ({"multi_window": 40}, "roce_max_kb", 640),
        ({"multi_window": 48}, "roce_max_kb", 768),
        ({"multi_window": 56}, "roce_max_kb", 896),
        ({"parallel": 8, "roce_max_kb": 600}, "roce_max_kb", 600),
        ({"parallel": 8, "roce_max_kb": 512}, "roce_max_kb", 1024),
        ({"release": "v1.4", "parallel": 4}, "memory_reserve_gib", 14.5),
        ({}, "thinking", True),
        ({"ablit": True, "hf_token_file": "/token"}, "thinking", False),
        ({"ablit": True, "hf_token_file": "/token"}, "model_revision", "57edefd2f5d9b371c8345883304d5af68b52fa24"),
        ({"model_id": "other/model"}, "model_revision", ""),
        ({"model_revision": ""}, "model_revision", ""),
        ({}, "stop_timeout", 30),
        ({"spill_gib": 1, "spill_flush_s": 90.9}, "stop_timeout", 120),
        ({"link": "tcp"}, "comm", "nccl"),
        ({"release": "v1.3"}, "cache_entries", 8),
        ({"release": "v1.3"}, "multi_lone", True),
        ({"release": "v1.3.1"}, "multi_lone", False),
        ({"release": "v1.3.1"}, "cache_entries", 8),
        ({"release": "v1.8"}, "nucleus_union", False),
        ({"release": "v1.5"}, "roce_wait_s", 20),
        ({"release": "v1.6"}, "roce_wait_s", 300),
        ({"release": "v1.3.2"}, "model_id", _tensorfold_releases.TR3_ID),
        ({"release": "v1.3.3"}, "model_id", _tensorfold_releases.TENSORFOLD_ID),
    ],
)
def test_a_default_follows_from_the_other_settings(values: dict[str, Any], name: str, expected: Any) -> None:
    assert one(**values)[name] == expected


def test_three_hosts_decode_more_requests_from_a_larger_pool() -> None:
    found = settings_of("a", "b", "c")["a"]
    assert [found[name] for name in ("parallel", "kv_pool_gib", "comm", "multi_window")] == [8, 32.0, "nccl", 64]


def test_releases_are_ordered_by_their_numbers() -> None:
    names = list(_tensorfold_releases.RELEASES)
    assert sorted(names, key=lambda name: [int(part) for part in name[1:].split(".")]) == names
    assert _tensorfold_releases.at_least("v1.10", "v1.9.1")
    assert not _tensorfold_releases.at_least("v1.3.2", "v1.3.3")


@pytest.mark.parametrize("release", list(_tensorfold_releases.RELEASES))
def test_the_defaults_of_every_release_are_sound(release: str) -> None:
    assert refused(release=release) == {}


@pytest.mark.parametrize(
    ("values", "name", "words"),
    [
        ({"release": "v1.3.2", "fill_budget_ms": 200}, "fill_budget_ms", "v1.3.2 does not know it; it came with v1.4"),
        ({"release": "v1.9.1", "effort_tail": False}, "effort_tail", "it came with v1.10"),
        ({"release": "v1.6", "ablit": True, "hf_token_file": "/t"}, "ablit", "it came with v1.7"),
        ({"release": "v1.4", "parallel": 5}, "parallel", "at most 4 requests at once"),
        ({"parallel": 2, "drafter": "mtp"}, "parallel", "2 requests at once need the drafter dflash2"),
        ({"parallel": 4, "purpose": "commercial"}, "parallel", "allowed with it is 1"),
        ({"purpose": "commercial", "drafter": "dflash2"}, "drafter", "CC BY-NC-ND 4.0"),
        ({"ablit": True}, "ablit", "name the file on the head that holds it in sparkpair_hf_token_file"),
        ({"model_id": _tensorfold_releases.ABLIT_ID}, "model_id", "the gated weights need a token"),
        ({"ablit": True, "hf_token_file": "/t", "model_id": "a/b"}, "model_id", "leave one out"),
        ({"model_id": "model"}, "model_id", "write ORGANISATION/NAME"),
        ({"model_revision": "main"}, "model_revision", "no commit of 40 hex digits"),
        ({"vision": False, "vision_urls": True}, "vision_urls", "need sparkpair_vision"),
        ({"image_tokens": 20000}, "image_tokens", "more than the 16384 of sparkpair_request_image_tokens"),
        ({"display_kv_mib": 16, "drafter": "mtp"}, "display_kv_mib", "sparkpair_parallel is 1"),
        ({"display_kv_mib": 16, "display_kv_backend": "dispram"}, "dispram_client_dir", "needs the host's directory"),
        ({"spill_dir": "spill"}, "spill_dir", "spill is relative"),
        ({"comm": "roce", "link": "tcp"}, "comm", "roce needs RDMA"),
        ({"socket_netdev": "eth0"}, "socket_netdev", "this is for three"),
        ({"runtime": "process"}, "runtime", "allowed is container"),
        ({"port": 29551}, "master_port", "29551 is sparkpair_port too"),
        ({"context": 100}, "context", "no chat turn"),
        ({"extra_args": ["--context", "5"]}, "extra_args", "use sparkpair_context instead"),
        ({"extra_env": {"TF_GLM_KV": "bf16"}}, "extra_env", "use sparkpair_kv instead"),
        ({"extra_env": {"HF_TOKEN": "x"}}, "extra_env", "use sparkpair_hf_token_file instead"),
    ],
)
def test_what_could_not_serve_is_refused_with_the_reason(values: dict[str, Any], name: str, words: str) -> None:
    assert words in refused(**values)[name]


@pytest.mark.parametrize(
    ("hosts", "release", "words"),
    [
        (("a", "b", "c"), "v1.3.2", "allowed is 2; 3 came with v1.4"),
        (("a", "b", "c", "d"), "v1.10", "over 4 hosts; allowed is 2 or 3"),
    ],
)
def test_a_number_of_hosts_that_the_release_cannot_use_is_refused(
    hosts: tuple[str, ...], release: str, words: str
) -> None:
    assert words in refused(*hosts, release=release)["tp"]


def test_all_rules_speak_at_once() -> None:
    broken = refused(release="v1.3.2", parallel=8, loop_guard=True, vision=False, vision_urls=True, spill_dir="x")
    assert set(broken) == {"parallel", "loop_guard", "vision_urls", "spill_dir"}


def test_ranks_with_different_reserves_would_refuse_each_other() -> None:
    settings = effective(*HOSTS, engine="tensorfold")
    settings[HOSTS[1]]["memory_reserve_gib"] = 18.0
    assert dict(_tensorfold_rules.differing(list(settings.values()))) == {
        "memory_reserve_gib": "ranks of tensorfold need the same value, but hosts have 14.5 and 18"
    }


def test_a_setting_without_effect_is_said_and_not_refused() -> None:
    values = {"nfs_volume": "mine", "spill_min_tokens": 1, "copy_max": 3, "port": 9000}
    names = [name.removeprefix("sparkpair_") for name in given(**values)]
    assert refused(**values) == {}
    assert _tensorfold_rules.notes(one(**values), names) == [
        "sparkpair_nfs_volume has no effect while sparkpair_worker_weights is not nfs",
        "sparkpair_spill_min_tokens has no effect while sparkpair_spill_gib is 0",
    ]


def test_o02_m04_faults_of_an_old_release_that_end_both_ranks_are_said_with_what_helps() -> None:
    late, memory = _tensorfold_rules.notes(one(release="v1.3.2"), ["release"])
    assert late.startswith("release v1.3.2 takes a rank that is 20 s late for lost")
    assert "sparkpair_roce_wait_s: 300" in late
    assert "v1.8 has mended that" in memory
    # Who waits longer, or does not gather by RDMA, is not told of the wait.
    for values in ({"roce_wait_s": 300}, {"comm": "nccl"}):
        assert _tensorfold_rules.notes(one(release="v1.3.2", **values), ["release"]) == [memory]
    assert _tensorfold_rules.notes(one(release="v1.6"), ["release"]) == [memory.replace("v1.3.2", "v1.6")]
    assert _tensorfold_rules.notes(one(release="v1.8"), ["release"]) == _tensorfold_rules.notes(one(), []) == []


@pytest.mark.parametrize(
    ("values", "component", "licence"),
    [
        ({"release": "v1.3.2"}, "checkpoint", "ShapleyMcg License 1.0"),
        ({}, "checkpoint", "Apache-2.0 (base model MIT by Z.ai)"),
        ({"model_id": "other/model"}, "checkpoint other/model", "see its page"),
        ({}, "drafter DFlash2", "CC BY-NC-ND 4.0"),
        ({"purpose": "commercial"}, "drafter DFlash2", None),
        ({"purpose": "commercial"}, "TensorFold", "Apache-2.0 (earlier code MIT)"),
    ],
)
def test_the_licences_are_those_of_what_is_served(values: dict[str, Any], component: str, licence: str | None) -> None:
    found = {each.component: each.licence for each in _licences.apply_to(one(**values))}
    assert found.get(component) == licence
    assert found["base image"].startswith("NVIDIA Software License Agreement")


def test_the_engine_of_this_collection_brings_no_licence_of_others() -> None:
    assert _licences.apply_to(effective("a")["a"]) == []
