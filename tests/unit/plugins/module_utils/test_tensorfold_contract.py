# SPDX-License-Identifier: Apache-2.0
"""The containers of TensorFold's ranks: equal to the published contract, and no setting is accepted and ignored."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _tensorfold_settings
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash

from tests.unit.plugins.module_utils.settings_files import DECLARED, ROOT
from tests.unit.plugins.module_utils.tensorfold import EXAMPLE, golden, one, plan

RELEASES = ("v1.3.2", "v1.10")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_default_container_equals_the_published_contract_field_by_field(release: str, rank: int) -> None:
    found = plan(release=release)["ranks"][rank]
    expected = golden(release)["ranks"][rank]
    assert found.pop("spec_hash") == spec_hash(found)
    for field in expected:
        assert found[field] == expected[field], field
    assert set(found) == set(expected)


def test_both_ranks_carry_the_same_switches_of_the_engine() -> None:
    first, second = (rank["env"] for rank in plan()["ranks"])
    differing = {name for name in {*first, *second} if first.get(name) != second.get(name)}
    assert differing == {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"}


# Another value than the default for every setting of the engine, with what makes it count; some only speak to the
# disks, the times and the licences of a plan.
OTHER: dict[str, dict[str, Any]] = {
    "release": {"release": "v1.9"},
    "purpose": {"purpose": "commercial"},
    "model_id": {"model_id": "other/model"},
    "model_revision": {"model_revision": "0" * 40},
    "ablit": {"ablit": True, "hf_token_file": "/token"},
    "drafter": {"drafter": "mtp"},
    "drafter_id": {"drafter_id": "other/drafter"},
    "drafter_revision": {"drafter_revision": "0" * 40},
    "image": {"image": "mine:1"},
    "image_repository": {"image_repository": "registry.example/mine"},
    "container_name": {"container_name": "mine"},
    "hf_cache": {"hf_cache": "/srv/hub"},
    "worker_weights": {"worker_weights": "nfs"},
    "nfs_path": {"worker_weights": "nfs", "nfs_path": "/"},
    "nfs_server": {"worker_weights": "nfs", "nfs_server": "192.0.2.99"},
    "nfs_volume": {"worker_weights": "nfs", "nfs_volume": "mine"},
    "kernel_cache": {"kernel_cache": "/srv/kernels"},
    "download_free_gb": {"download_free_gb": 1},
    "image_free_gb": {"image_free_gb": 1},
    "nccl_channels": {"nccl_channels": 8},
    "nccl_debug": {"nccl_debug": "INFO"},
    "comm": {"comm": "nccl"},
    "max_queued": {"max_queued": 0},
    "vision_urls": {"vision_urls": True},
    "kv": {"kv": "bf16"},
    "display_kv_mib": {"display_kv_mib": 1792},
    "display_kv_backend": {"display_kv_mib": 16, "display_kv_backend": "dispram"},
    "dispram_socket_dir": {"display_kv_mib": 16, "display_kv_backend": "dispram", "dispram_socket_dir": "/run/x"},
    "dispram_client_dir": {"display_kv_mib": 16, "display_kv_backend": "dispram", "dispram_client_dir": "/opt/x"},
    "dense": {"dense": "fp8"},
    "draft_policy": {"draft_policy": "fc5:0.3"},
    "copy_max": {"copy_max": 5},
    "mtp": {"mtp": "1"},
    "l2_prefetch": {"l2_prefetch": "bulk"},
    "expert_loads": {"expert_loads": "ldg"},
    "kv_pool_gib": {"kv_pool_gib": 3},
    "multi_window": {"multi_window": 64},
    "roce_wait_s": {"roce_wait_s": 20},
    "cache_entries": {"cache_entries": 8},
    "multi_lone": {"multi_lone": True},
    "nucleus_union": {"nucleus_union": False},
}
# What only the roles that bring the weights read.
OF_THE_WEIGHTS = {"hf_token_file", "hub_endpoint", "hub_command", "verify", "nfs_export"}
# And what a run on three hosts or a plan itself reads.
ELSEWHERE = {*OF_THE_WEIGHTS, "socket_netdev", "recorded_facts", "publish_token_file", "publish_user"}


def other_value(name: str) -> dict[str, Any]:
    if name in OTHER:
        return OTHER[name]
    default = DECLARED[f"sparkpair_{name}"].default
    value = not default if isinstance(default, bool) else "/srv/other" if isinstance(default, str) else default + 1
    if name == "spill_highwater":
        value = 0.5
    return {"spill_gib": 64.0, name: value} if name.startswith("spill_") and name != "spill_gib" else {name: value}


@pytest.mark.parametrize(
    "name", sorted({one.short for one in DECLARED.values() if one.engine == "tensorfold"} - ELSEWHERE)
)
def test_s16_no_setting_of_the_engine_is_accepted_and_ignored(name: str) -> None:
    changed = other_value(name)
    facts = copy.deepcopy(EXAMPLE)
    facts["hosts"]["spark-head"]["weights"]["missing_bytes"] = None  # So that the fixed amount counts.
    without = plan(facts, **{key: value for key, value in changed.items() if key != name})
    with_ = plan(facts, **changed)
    assert [with_[part] for part in ("ranks", "disk")] != [without[part] for part in ("ranks", "disk")]


@pytest.mark.parametrize("name", sorted(OF_THE_WEIGHTS))
def test_settings_of_the_weights_reach_their_roles(name: str) -> None:
    tasks = [path.read_text() for role in ("weights", "nfs_export") for path in (ROOT / "roles" / role).rglob("*.yml")]
    assert any(f"__settings_resolved.settings.{name}" in text for text in tasks)


def test_every_setting_of_the_engine_has_its_row_in_the_table_of_names() -> None:
    declared = {one.short for one in DECLARED.values()}
    rows = set(_tensorfold_settings.BY_SETTING)
    assert rows <= declared
    plans = {"engine", "runtime", "docker_host", "release", "purpose", "recorded_facts", "plan_json"}
    plans |= {"output_dir", "purge_consent", "manage_link", "link_networks", "link_mtu", "link_floor_gbit"}
    plans |= {"autostart", "autostart_port"}
    assert {one.short for one in DECLARED.values() if one.engine in ("", "tensorfold")} - rows == plans
    assert len(rows) == len(_tensorfold_settings.ROWS)


@pytest.mark.parametrize(
    ("release", "values", "variable", "expected"),
    [
        # Understood before the recipe passed it on: carried only when it is not what the engine does anyway.
        ("v1.3.2", {}, "TF_ROCE_WAIT_S", None),
        ("v1.3.2", {"roce_wait_s": 300}, "TF_ROCE_WAIT_S", "300"),
        ("v1.3.2", {"nucleus_union": True}, "TENSORFOLD_NUCLEUS_UNION", "1"),
        ("v1.10", {}, "TF_GLM_ASSISTANT_ENDS", None),
        ("v1.10", {"assistant_ends": False}, "TF_GLM_ASSISTANT_ENDS", "0"),
        ("v1.10", {"max_queued": 0}, "TF_GLM_MAX_QUEUED", "0"),
        ("v1.10", {"split": False}, "TF_GLM_PREFILL_OVERLAP", "0"),
        ("v1.10", {"copy_code": False}, "TF_GLM_COPY_REPLY_MATCH", "0"),
        ("v1.10", {"kv_pool_gib": 11}, "TF_GLM_CACHE_GIB", "11"),
        ("v1.10", {"spill_gib": 64, "spill_flush_s": 90}, "TF_SPILL_FLUSH_S", "90"),
        ("v1.10", {"rails": 1}, "NCCL_IB_HCA", "rocep1s0f1"),
        ("v1.10", {"extra_env": {"CUDA_CACHE_PATH": "/cache/cuda"}}, "CUDA_CACHE_PATH", "/cache/cuda"),
    ],
)
def test_a_rank_carries_the_variable(release: str, values: dict[str, Any], variable: str, expected: str | None) -> None:
    assert plan(release=release, **values)["ranks"][0]["env"].get(variable) == expected


def test_arguments_of_the_spill_tier_and_the_deployers_own_come_last() -> None:
    argv = plan(spill_gib=64, extra_args=["--alias", "x"], vision_urls=True)["ranks"][1]["argv"]
    assert " ".join(argv[argv.index("--thinking") :]) == (
        "--thinking --vision --vision-urls --spill-gib 64 --snapshot-dir /spill --spill-highwater 0.7 "
        "--spill-min-tokens 8192 --spill-min-free-gib 50 --alias x"
    )


def test_the_checkpoints_own_head_drafts_when_dflash2_does_not() -> None:
    argv = plan(drafter="mtp")["ranks"][0]["argv"]
    assert argv[argv.index("--drafter") + 1] == "none"


def test_a_worker_over_nfs_reads_the_heads_cache_and_never_writes_it() -> None:
    head, worker = plan(worker_weights="nfs")["ranks"]
    assert head["mounts"][0]["type"] == "bind"
    assert worker["mounts"][0] == {
        "type": "volume",
        "source": "glm53-hf",
        "target": "/root/.cache/huggingface",
        "mode": "ro",
        "driver": "local",
        "driver_options": {
            "type": "nfs",
            "device": ":/home/spark/.cache/huggingface",
            "o": "addr=192.0.2.1,nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600",
        },
    }


def test_each_host_mounts_its_own_cache() -> None:
    facts = copy.deepcopy(EXAMPLE)
    facts["hosts"]["spark-worker"].update(home="/home/other", hf_home="/data/hub")
    sources = [mount["source"] for mount in plan(facts)["ranks"][1]["mounts"]]
    assert sources == ["/data/hub", "/home/other/.cache/tensorfold-glm53/a1897d591f70"]


def test_o01_another_image_has_another_kernel_cache_and_another_hash() -> None:
    old, new = plan(release="v1.9")["ranks"][0], plan()["ranks"][0]
    assert old["mounts"][1]["source"] != new["mounts"][1]["source"]
    assert old["image"] == new["image"]
    assert old["spec_hash"] != new["spec_hash"]


def test_three_hosts_meet_on_their_common_network_and_name_their_devices() -> None:
    facts = copy.deepcopy(EXAMPLE)
    facts["hosts"]["third"] = copy.deepcopy(facts["hosts"]["spark-worker"])
    for number, node in enumerate(facts["hosts"].values(), start=1):
        node["link"].update(socket_netdev="enP7s7", gid_index=None)
        node["lan_address"] = f"198.51.100.{number}"
    document = plan(facts, hosts=("spark-head", "spark-worker", "third"))
    argv, env = document["ranks"][2]["argv"], document["ranks"][2]["env"]
    assert argv[argv.index("--master") + 1] == "198.51.100.1"
    assert argv[argv.index("--parallel") + 1] == "8"
    assert env["NCCL_SOCKET_IFNAME"] == "enP7s7"
    assert "NCCL_IB_GID_INDEX" not in env
    assert [env[name] for name in ("TF_ROCE_HCA", "NCCL_CROSS_NIC", "NCCL_P2P_DISABLE", "TF_GLM_CACHE_GIB")] == [
        "rocep1s0f0,roceP2p1s0f0",
        "1",
        "1",
        "32",
    ]


def test_a_variable_that_looks_secret_is_not_shown() -> None:
    document = plan(extra_env={"PROXY_PASSWORD": "s3cret-value"})
    assert "s3cret-value" not in str(document)
    assert document["ranks"][0]["env"]["PROXY_PASSWORD"] == "(secret)"


def test_settings_of_another_release_are_not_shown() -> None:
    assert "fill_budget_ms" not in plan(release="v1.3.2")["settings"]
    assert plan()["settings"]["fill_budget_ms"] == one()["fill_budget_ms"]
