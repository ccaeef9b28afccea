# SPDX-License-Identifier: Apache-2.0
"""Everything that keeps a pair from starting is said at once, with host, remedy and severity."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _findings, _plan

from tests.unit.plugins.module_utils.settings_files import effective, plan_of

SOUND: dict[str, Any] = {
    "hostname": "spark-1",
    "system": "boot",
    "own_addresses": ["192.0.2.1"],
    "python": "3.12.3",
    "user": "spark",
    "memory": {"total_bytes": 128 << 30, "available_bytes": 110 << 30},
    "state_dir": "/state",
    "directory": {
        "exists": True,
        "writable": True,
        "nearest": "/state",
        "nearest_is_directory": True,
        "read_only": False,
        "free_bytes": 1 << 40,
    },
    "address_is_local": True,
    "engine": {"version": "1", "code_digest": "c0de", "error": ""},
    "checkpoint": {"path": "/state/checkpoints/x", "state": "absent", "problems": [], "digest": ""},
    "ranks": [],
    "listening": [],
    "api_key_file": {"path": "/k", "problem": ""},
    "autostart": {"systemd": True, "supervisor": None},
    "last_start": None,
    "updates": [],
}


def judged(
    change: Callable[[dict[str, dict[str, Any]]], Any] = lambda probes: None, **settings: Any
) -> list[_findings.Finding]:
    """What speaks against two sound hosts after a change to their probes."""
    options = effective("a", "b", **{"api_key_file": "/k", **settings})
    probes = {host: {**copy.deepcopy(SOUND), "system": f"boot of {host}"} for host in options}
    change(probes)
    return _findings.judge(plan_of(options), options, probes, _plan.Ports(8888, 29551, to_remember=False))


def test_nothing_speaks_against_sound_hosts() -> None:
    assert judged() == []


def test_an_open_api_that_others_reach_is_warned_about() -> None:
    (finding,) = judged(api_key_file="")
    assert (finding.id, finding.severity, finding.host) == ("open_api", _findings.WARNING, "a")
    assert judged(api_key_file="", host="127.0.0.1") == []


def test_a_key_file_that_cannot_be_used_keeps_the_pair_from_starting() -> None:
    (finding,) = judged(lambda probes: probes["a"]["api_key_file"].update(problem="the key file /k has mode 0644"))
    assert (finding.id, finding.severity) == ("key_file", _findings.ERROR)
    assert "the key file /k has mode 0644" in _findings.sentence(finding)


def a_directory(**changes: Any) -> Callable[[dict[str, dict[str, Any]]], None]:
    return lambda probes: probes["a"]["directory"].update(changes)


def a_socket(port: int, address: str = "0.0.0.0", rank: int | None = None) -> dict[str, Any]:
    return {"port": port, "address": address, "pid": 77, "command": "python3 -m http.server", "rank": rank}


@pytest.mark.parametrize(
    ("change", "finding", "words"),
    [
        (lambda p: p["b"].update(python="3.8.10"), "python", "Python 3.8.10"),
        (a_directory(writable=False), "state_directory", "user spark may not write to the state directory /state"),
        (
            a_directory(writable=False, exists=False, nearest="/srv"),
            "state_directory",
            "user spark may not create /state, because /srv is not writable",
        ),
        (
            a_directory(writable=False, exists=False, nearest="/srv/file", nearest_is_directory=False),
            "state_directory",
            "because /srv/file is no directory",
        ),
        (a_directory(writable=False, read_only=True), "state_directory", "mounted read-only"),
        (a_directory(free_bytes=5 << 20), "disk", "5 MiB are free on the disk of /state"),
        (lambda p: p["a"]["engine"].update(error="exit code 1: boom"), "engine", "does not work (exit code 1: boom)"),
        (lambda p: p["b"].update(address_is_local=False), "address", "192.0.2.2 is no address of this host"),
        (lambda p: p["a"]["memory"].update(available_bytes=14 << 30), "memory", "14.0 GiB of memory are available"),
        (
            lambda p: p["a"]["ranks"].append({"rank": 0, "state": "unclear", "words": "status.json is damaged."}),
            "rank_state",
            "the state of rank 0 is unclear: status.json is damaged",
        ),
        (
            lambda p: p["a"]["listening"].append(a_socket(8888)),
            "port",
            "port 8888 is taken: process 77 (python3 -m http.server) listens on 0.0.0.0",
        ),
        (lambda p: p["a"]["listening"].append(a_socket(29551)), "port", "port 29551 is taken"),
        (lambda p: p["b"]["engine"].update(code_digest="0ther"), "engine_parity", "0ther here and c0de on a"),
    ],
)
def test_what_cannot_serve_is_an_error_with_its_reason(change: Callable[..., Any], finding: str, words: str) -> None:
    (found,) = judged(change)
    assert (found.id, found.severity) == (finding, "error")
    assert words in found.found
    assert found.remedy


def test_a_wrong_checkpoint_of_ones_own_is_named_file_by_file() -> None:
    def change(probes: dict[str, dict[str, Any]]) -> None:
        for probe in probes.values():
            probe["checkpoint"].update(state="complete", digest="d")
        probes["a"]["checkpoint"].update(
            state="damaged", digest="", problems=["m-1.safetensors cannot be read: No such file or directory"]
        )

    (found,) = judged(change, model="/models/x")
    assert found.id == "checkpoint"
    assert "m-1.safetensors cannot be read" in found.found


def test_a_missing_miniature_is_no_finding_because_it_will_be_written() -> None:
    assert judged(lambda probes: probes["a"]["checkpoint"].update(state="damaged", problems=["x"])) == []


def test_different_checkpoints_on_two_hosts_are_an_error() -> None:
    def change(probes: dict[str, dict[str, Any]]) -> None:
        for host, probe in probes.items():
            probe["checkpoint"].update(state="complete", digest=host * 64)

    (found,) = judged(change, model="/models/x")
    assert (found.id, found.host) == ("checkpoint_parity", "b")


@pytest.mark.parametrize("socket", [a_socket(8888, rank=0), a_socket(8887), a_socket(8888, "192.0.2.77")])
def test_only_a_stranger_on_the_same_port_and_address_is_in_the_way(socket: dict[str, Any]) -> None:
    assert judged(lambda probes: probes["a"]["listening"].append(socket), host="192.0.2.1") == []


def test_what_listens_on_a_worker_is_not_in_the_way() -> None:
    assert judged(lambda probes: probes["b"]["listening"].append(a_socket(8888))) == []


def test_memory_that_the_pairs_own_rank_uses_is_no_finding() -> None:
    def change(probes: dict[str, dict[str, Any]]) -> None:
        probes["a"]["memory"]["available_bytes"] = 1 << 30
        probes["a"]["ranks"].append({"rank": 0, "state": "running", "words": "running"})

    assert judged(change) == []


def test_an_own_name_on_loopback_warns_because_this_engine_uses_addresses() -> None:
    (found,) = judged(lambda probes: probes["a"].update(own_addresses=["127.0.1.1"]))
    assert (found.id, found.severity) == ("own_name", "warning")
    assert "127.0.1.1" in found.found


def test_all_errors_of_all_hosts_come_in_one_text() -> None:
    def change(probes: dict[str, dict[str, Any]]) -> None:
        probes["a"]["engine"]["error"] = "x"
        probes["b"]["address_is_local"] = False

    lines = _findings.render(judged(change)).splitlines()
    assert lines[0] == "2 things keep the pair from starting; nothing has been stopped or changed."
    assert [line[:5] for line in lines[1:]] == ["1. a:", "2. b:"]


def test_units_are_refused_on_a_host_without_systemd_before_anything_is_done() -> None:
    (finding,) = judged(lambda probes: probes["b"]["autostart"].update(systemd=False), autostart=True)
    assert (finding.id, finding.severity, finding.host) == ("systemd", _findings.ERROR, "b")
    assert judged(lambda probes: probes["b"]["autostart"].update(systemd=False)) == []


def test_o14_an_update_since_the_last_good_start_is_warned_of_where_a_start_lies_ahead() -> None:
    def change(probes: dict[str, dict[str, Any]]) -> None:
        update = {"name": "kernel", "before": "6.17.0-1029-nvidia", "now": "7.0.0-1019-nvidia"}
        probes["b"].update(last_start={"at": "20261101-101010"}, updates=[update])

    (finding,) = judged(change)
    assert (finding.id, finding.severity, finding.host) == ("updated", _findings.WARNING, "b")
    assert "an OS update since the last good start (20261101-101010 UTC): kernel 6.17.0-1029-nvidia is" in finding.found
    assert finding.remedy == "if it does, boot the earlier kernel"
    running = {"rank": 1, "state": "running", "words": "running"}
    assert judged(lambda probes: (change(probes), probes["b"]["ranks"].append(running))) == []


def test_a_worker_that_is_the_head_under_another_address_is_refused_by_name() -> None:
    def change(probes: dict[str, dict[str, Any]]) -> None:
        probes["b"]["system"] = probes["a"]["system"]

    (finding,) = judged(change)
    assert (finding.id, finding.severity, finding.host) == ("one_machine", _findings.ERROR, "b")
    assert "this is the machine that a is, too (spark-1)" in finding.found
    assert "correct ansible_host of b or of a" in finding.remedy
    # A rehearsal says by its addresses that it is meant so.
    options = effective("a", "b", api_key_file="/k", fabric_address="127.0.0.1")
    probes = {host: copy.deepcopy(SOUND) for host in options}
    ports = _plan.Ports(8888, 29551, to_remember=False)
    assert _findings.judge(plan_of(options), options, probes, ports) == []
