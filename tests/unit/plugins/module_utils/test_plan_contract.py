# SPDX-License-Identifier: Apache-2.0
"""The plan and the rank documents: addresses, ports, arguments, and that every setting has an effect."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _contract, _link, _plan
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash

from tests.unit.plugins.module_utils.settings_files import DECLARED, ROOT, effective, plan_of

PROBE: dict[str, Any] = {
    "state_dir": "/state",
    "cpus": 20,
    "engine": {"version": "1", "code_digest": "c0de", "error": ""},
    "ranks": [],
    "api_key_file": {"path": "", "problem": ""},
    "ids": {"uid": 1000, "gid": 1000},
    "machine": {"docker": {"runtimes": ["nvidia", "runc"]}},
}
CHECKPOINT = {"path": "/models/x", "digest": "d1", "state": "complete"}
PORTS = {"port": 8888, "master_port": 29551, "to_remember": False}


def documents(settings: dict[str, dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """The documents of all ranks."""
    plan = plan_of(settings)
    link = _link.plain(plan, settings[next(iter(settings))]["host"])
    checkpoint = {**CHECKPOINT, **changes.get("checkpoint", {})}
    probe = {**PROBE, **changes.get("probe", {})}
    known = {host: _contract.Host(options, probe, checkpoint, image="c0ffee") for host, options in settings.items()}
    return list(_contract.documents(plan, known, link, PORTS).values())


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_rank_0_gets_the_api_and_the_others_do_not() -> None:
    head, worker = documents(effective("a", "b"))
    assert value_of(head["argv"], "--port") == "8888"
    assert value_of(head["argv"], "--host") == "0.0.0.0"
    assert head["ready_url"] == "http://127.0.0.1:8888/v1/models"
    for flag in ("--port", "--host", "--name"):
        assert flag not in worker["argv"]
    assert "ready_url" not in worker


def test_pictures_are_the_heads_alone() -> None:
    head, worker = documents(effective("a", "b", vision_urls=True, max_images=7))
    assert value_of(head["argv"], "--max-images") == "7"
    assert "--vision-urls" in head["argv"]
    for flag in ("--max-images", "--vision-urls", "--no-vision"):
        assert flag not in worker["argv"]
    without = documents(effective("a", "b", vision=False))[0]["argv"]
    assert "--no-vision" in without
    assert "--max-images" not in without


def test_rank_0_is_told_where_the_keys_are() -> None:
    head, worker = documents(effective("a", "b"), probe={"api_key_file": {"path": "/etc/keys", "problem": ""}})
    assert value_of(head["argv"], "--api-key-file") == "/etc/keys"
    assert "--api-key-file" not in worker["argv"]
    assert "--api-key-file" not in documents(effective("a", "b"))[0]["argv"]


def test_all_ranks_meet_at_the_heads_address_on_the_link() -> None:
    ranks = documents(effective("a", "b", "c"))
    assert {value_of(rank["argv"], "--master") for rank in ranks} == {"192.0.2.1"}
    assert [value_of(rank["argv"], "--rank") for rank in ranks] == ["0", "1", "2"]
    assert {value_of(rank["argv"], "--tp") for rank in ranks} == {"3"}


def test_extra_arguments_come_last_on_every_rank() -> None:
    for rank in documents(effective("a", "b", extra_args=["--profile", "x"])):
        assert rank["argv"][-2:] == ["--profile", "x"]


def test_stuck_steps_are_reported_before_a_silent_peer_counts_as_lost() -> None:
    assert value_of(documents(effective("a", "b"))[0]["argv"], "--stuck-after") == "60"
    ended = documents(effective("a", "b", peer_timeout=50, watchdog_exit=True))[1]["argv"]
    assert value_of(ended, "--stuck-after") == "10"
    assert "--stuck-exit" in ended


OTHER_VALUES: dict[str, Any] = {
    "engine_command": ["/opt/sparkpair"],
    "served_name": "other",
    "host": "192.0.2.1",
    "max_tokens": 5,
    "thinking": False,
    "context": 4096,
    "memory_reserve_gib": 3.5,
    "threads": 7,
    "fabric_address": "127.0.0.1",
    "join_timeout": 5,
    "peer_timeout": 5,
    "watchdog_s": 7,
    "watchdog_exit": True,
    "vision": False,
    "vision_urls": True,
    "image_tokens": 500,
    "request_image_tokens": 5000,
    "max_images": 5,
    "video_tokens": 500,
    "request_video_tokens": 5000,
    "video_frames": 8,
    "max_videos": 1,
    "comm": "roce",
    "extra_args": ["--x"],
    "extra_env": {"A": "b"},
}
# What does not reach a rank's document by itself reaches a host through these files.
REACHES = {
    "engine": "roles/preflight/tasks/probe.yml",
    "runtime": "roles/rank/tasks/main.yml",
    "state_dir": "roles/preflight/tasks/probe.yml",
    "output_dir": "playbooks/collect.yml",
    "purge_consent": "playbooks/purge.yml",
    "docker_host": "roles/preflight/tasks/probe.yml",
    "autostart": "roles/autostart/tasks/main.yml",
    "autostart_port": "roles/autostart/templates/config.json.j2",
    "image": "plugins/module_utils/_image_wanted.py",
    "image_free_gb": "plugins/module_utils/_machine_findings.py",
    "container_name": "plugins/module_utils/_contract.py",
    "model": "roles/preflight/tasks/probe.yml",
    "miniature": "roles/preflight/tasks/probe.yml",
    "miniature_seed": "roles/weights/tasks/main.yml",
    "port": "roles/preflight/tasks/probe.yml",
    "log_keep": "roles/rank/tasks/start.yml",
    "stop_timeout": "roles/rank/tasks/stop.yml",
    "wait_timeout": "roles/rank/tasks/live.yml",
    "parallel": "plugins/module_utils/_engine_sparkpair.py",
    "master_port": "plugins/module_utils/_plan.py",
    "tp": "plugins/module_utils/_rules.py",
    "plan_json": "plugins/action/plan_document.py",
    "link": "roles/roce_link/tasks/main.yml",
    "rails": "plugins/module_utils/_link_facts.py",
    "roce_max_kb": "plugins/module_utils/_engine_sparkpair.py",
    "roce_wait_s": "plugins/module_utils/_engine_sparkpair.py",
    "manage_link": "roles/roce_link/tasks/main.yml",
    "link_networks": "roles/roce_link/tasks/managed.yml",
    "link_mtu": "roles/roce_link/tasks/managed.yml",
    "link_floor_gbit": "plugins/module_utils/_link_facts.py",
    "api_key_file": "roles/preflight/tasks/probe.yml",
}


@pytest.mark.parametrize("name", [one.short for one in DECLARED.values() if one.engine != "tensorfold"])
def test_s16_no_setting_is_accepted_and_ignored(name: str) -> None:
    if name in OTHER_VALUES:
        default = documents(effective("a", "b"))
        assert documents(effective("a", "b", **{name: OTHER_VALUES[name]})) != default
    else:
        text = (ROOT / REACHES[name]).read_text()
        assert f"settings.{name}" in text or f'["{name}"]' in text


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": {"digest": "d2"}},
        {"checkpoint": {"path": "/models/y"}},
        {"probe": {"engine": {"version": "1", "code_digest": "new", "error": ""}}},
    ],
)
def test_other_code_or_weights_are_another_contract(changes: dict[str, Any]) -> None:
    settings = effective("a", "b")
    before, after = documents(settings), documents(settings, **changes)
    assert [spec_hash(rank) for rank in before] != [spec_hash(rank) for rank in after]


def test_a_rank_of_this_engine_may_be_a_container_of_the_account_that_owns_the_files() -> None:
    settings = effective("a", "b", runtime="container", image="engine:1", extra_env={"A": "b"})
    keys = {"path": "/etc/keys", "problem": ""}
    head, worker = documents(settings, probe={"api_key_file": keys})
    assert (head["name"], head["image"], head["user"], head["gpus"]) == ("sparkpair", "engine:1", "1000:1000", "all")
    assert head["argv"][:3] == ["sparkpair", "serve", "/models/x"]
    assert [(mount["target"], mount["mode"]) for mount in head["mounts"]] == [
        ("/models/x", "ro"),
        ("/state/cache", "rw"),
        ("/etc/keys", "ro"),
    ]
    assert (head["env"]["HOME"], head["env"]["A"]) == ("/state/cache", "b")
    # The image's content decides, not its name.
    assert worker["engine"] == {"version": "engine:1", "code_digest": "c0ffee"}
    assert (worker["restart_policy"], worker["init"]) == ("no", False)


ROCE_NODES = {
    "a": {"address": "192.168.100.10", "devices": ["rocep1s0f0", "roceP2p1s0f0"], "gid_index": 3},
    "b": {"address": "192.168.100.11", "devices": ["rocep1s0f1", "roceP2p1s0f1"], "gid_index": 1},
}


def roce_documents(**settings: Any) -> list[dict[str, Any]]:
    """The documents of two ranks on a link of two rails."""
    given = effective("a", "b", **settings)
    plan = plan_of(given)
    known = {host: _contract.Host(options, PROBE, CHECKPOINT, image="c0ffee") for host, options in given.items()}
    link = {"rendezvous": "192.168.100.10", "nodes": ROCE_NODES}
    return list(_contract.documents(plan, known, link, PORTS).values())


def test_ranks_that_gather_by_rdma_get_their_own_rails_as_they_were_detected() -> None:
    head, worker = roce_documents(comm="roce", roce_max_kb=256, roce_wait_s=90)
    assert value_of(head["argv"], "--comm") == "roce"
    assert value_of(head["argv"], "--roce-rails") == "rocep1s0f0:3,roceP2p1s0f0:3"
    assert value_of(worker["argv"], "--roce-rails") == "rocep1s0f1:1,roceP2p1s0f1:1"
    assert (value_of(worker["argv"], "--roce-max-kb"), value_of(worker["argv"], "--roce-wait")) == ("256", "90")
    assert not [word for word in roce_documents()[0]["argv"] if "roce" in word]


def test_a_container_gets_rdma_devices_and_locked_memory_only_where_gathers_need_them() -> None:
    container = {"runtime": "container", "image": "engine:1"}
    head = roce_documents(comm="roce", **container)[0]
    assert (head["devices"], head["capabilities"], head["ulimits"]) == (
        ["/dev/infiniband"],
        ["IPC_LOCK"],
        {"memlock": -1},
    )
    plain = roce_documents(**container)[0]
    assert (plain["devices"], plain["capabilities"], plain["ulimits"]) == ([], [], {})


def running(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"rank": document["rank"], "state": "running", "spec_hash": spec_hash(document), **changes}


def test_a_rank_that_runs_with_its_document_fulfils_it() -> None:
    document = documents(effective("a", "b"))[0]
    assert _contract.fulfilled(document, {"ranks": [running(document)]})


@pytest.mark.parametrize("changes", [{"state": "ended"}, {"spec_hash": "0" * 64}, {"rank": 1}])
def test_a_rank_that_ended_or_differs_does_not(changes: dict[str, Any]) -> None:
    document = documents(effective("a", "b"))[0]
    assert not _contract.fulfilled(document, {"ranks": [running(document, **changes)]})


def test_a_second_rank_in_the_same_state_directory_is_no_fulfilment() -> None:
    document = documents(effective("a", "b"))[0]
    assert not _contract.fulfilled(document, {"ranks": [running(document), running(document, rank=3)]})


def test_an_unwritten_checkpoint_makes_no_empty_digest() -> None:
    document = documents(effective("a", "b"), checkpoint={"digest": ""})[0]
    assert document["checkpoint"]["digest"] == _contract.UNWRITTEN


@pytest.mark.parametrize(
    ("cpus", "threads", "one_machine", "expected"),
    [(20, 0, False, 20), (20, 0, True, 10), (1, 0, True, 1), (20, 6, True, 6)],
)
def test_ranks_of_one_machine_share_its_processors(cpus: int, threads: int, one_machine: bool, expected: int) -> None:
    address = {"fabric_address": "127.0.0.1"} if one_machine else {}
    settings = effective("a", "b", threads=threads, **address)
    assert _plan.threads(settings["a"], plan_of(settings), cpus) == expected


@pytest.mark.parametrize(
    ("values", "name"),
    [({}, "GLM-5.3-Flash-miniature"), ({"model": "/m/GLM-x/"}, "GLM-x"), ({"model": "/m/x", "served_name": "y"}, "y")],
)
def test_the_model_id_is_what_was_set_else_the_checkpoints_name(values: dict[str, Any], name: str) -> None:
    assert effective("a", **values)["a"]["served_name"] == name


def listening(*ports: int, rank: int | None = None) -> list[dict[str, Any]]:
    return [{"port": port, "address": "0.0.0.0", "pid": 1, "rank": rank} for port in ports]


def choose(sockets: list[dict[str, Any]], remembered: dict[str, int] | None = None, **values: Any) -> _plan.Ports:
    settings = effective("a", **{"port": 0, "master_port": 0, **values})["a"]
    return _plan.choose_ports(settings, sockets, remembered or {})


@pytest.mark.parametrize(
    ("values", "random"),
    [
        ({}, True),
        ({"miniature": "trained"}, False),
        ({"model": "/models/GLM"}, False),
        ({"engine": "tensorfold"}, False),
    ],
)
def test_only_the_random_miniature_knows_nothing(values: dict[str, Any], random: bool) -> None:
    settings = effective("a", "b", **values)["a"]
    assert ADAPTERS[settings["engine"]].random_weights(settings) is random


def test_the_usual_ports_are_taken_where_they_are_free() -> None:
    assert choose([]) == _plan.Ports(8888, 29551, to_remember=True)


def test_a_users_own_server_keeps_its_port() -> None:
    assert choose(listening(8888, 18888, 29551)) == _plan.Ports(18889, 29552, to_remember=True)


def test_a_choice_stays_what_it_was_while_it_is_possible() -> None:
    remembered = {"port": 18889, "master_port": 29552}
    assert choose([], remembered) == _plan.Ports(18889, 29552, to_remember=False)
    assert choose(listening(18889, 29552, rank=0), remembered) == _plan.Ports(18889, 29552, to_remember=False)
    assert choose(listening(18889), remembered) == _plan.Ports(8888, 29552, to_remember=True)


def test_a_port_that_was_set_is_not_moved() -> None:
    assert choose(listening(9000), port=9000, master_port=9001) == _plan.Ports(9000, 9001, to_remember=False)


def test_a_chosen_port_never_meets_the_one_that_was_set() -> None:
    assert choose([], port=29551).master_port == 29552
    assert choose([], master_port=8888).port == 18888


@pytest.mark.parametrize(
    ("api_host", "connection", "advertised"),
    [
        ("198.51.100.5", "198.51.100.7", "198.51.100.5"),
        ("0.0.0.0", "198.51.100.7", "198.51.100.7"),
        ("0.0.0.0", "spark-1", "192.0.2.1"),
        ("0.0.0.0", "127.0.0.1", "192.0.2.1"),
    ],
)
def test_clients_are_told_the_address_they_can_reach(api_host: str, connection: str, advertised: str) -> None:
    plan = copy.deepcopy(plan_of(effective("a", "b")))
    plan["ranks"][0]["connection"] = connection
    assert _link.plain(plan, api_host)["advertised"] == advertised


def test_the_link_says_what_the_ranks_talk_over() -> None:
    loopback = _link.plain(plan_of(effective("a", "b", fabric_address="127.0.0.1")), "127.0.0.1")
    assert "loopback" in loopback["note"]
    assert "without RDMA" in loopback["note"]
    cable = _link.plain(plan_of(effective("a", "b")), "0.0.0.0")
    assert "a 192.0.2.1, b 192.0.2.2" in cable["note"]
    assert (cable["rendezvous"], cable["rdma"]) == ("192.0.2.1", False)
