# SPDX-License-Identifier: Apache-2.0
"""What keeps ranks in containers from starting on a Spark is found on every host at once, from recorded outputs."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _machine,
    _machine_findings,
    _machine_text,
    _weights_findings,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._machine_findings import GIB, Needs

MEMINFO = """MemTotal:       127600000 kB
MemFree:        121000000 kB
MemAvailable:   122000000 kB
Buffers:          100000 kB
Cached:          1500000 kB
SwapTotal:             0 kB
HugePages_Total:       0
CmaTotal:         65536 kB
CmaFree:          60000 kB
"""
GPU = "0, NVIDIA GB10, 580.173.02, [N/A], [N/A], 0, 208, 3003, 4.51\n"
PROCESSES = "4711, /usr/bin/python3, 91234\n4712, /usr/lib/xorg/Xorg, [N/A]\n"
DOCKER = json.dumps(
    {
        "ServerVersion": "28.2.2",
        "RuncCommit": {"ID": "v1.2.5-0-g59923ef"},
        "DockerRootDir": "/var/lib/docker",
        "Driver": "overlay2",
        "DriverStatus": [["Backing Filesystem", "extfs"]],
        "Runtimes": {"runc": {}, "nvidia": {}, "io.containerd.runc.v2": {}},
        "Warnings": None,
    }
)
OTHER = {
    "Name": "/vllm",
    "State": {"Running": True},
    "Config": {"Image": "vllm/vllm-openai:latest", "Env": [], "Labels": None},
    "HostConfig": {
        "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}],
        "RestartPolicy": {"Name": "unless-stopped"},
        "Devices": None,
    },
}
SOUND: dict[str, Any] = {
    "kernel": "6.17.0-1029-nvidia",
    "page_size": 4096,
    "memory": _machine_text.meminfo(MEMINFO),
    "crash_kernel_bytes": 0,
    "board_firmware": "5.36_0ACUM018",
    "oom_killers": [],
    "rdma": {"folder": True, "firmware": {"rocep1s0f0": "28.45.4028"}},
    "gpu": {"gpus": _machine_text.gpus(GPU), "processes": [], "error": ""},
    "docker": {**_machine_text.docker_info(DOCKER), "containers": [], "free_bytes": 500 * GIB, "device": 1},
    "cache": {
        "path": "/home/spark/.cache/huggingface",
        "user": "spark",
        "nearest": "/home/spark/.cache/huggingface",
        "writable": True,
        "foreign": None,
        "free_bytes": 500 * GIB,
        "device": 1,
    },
    "ssh": [{"target": "spark@192.0.2.2", "error": ""}],
    "requests": True,
    "container_toolkit": "1.17.8",
}
Change = Callable[[dict[str, Any]], Any]


def judged(change: Change = lambda one: None, needs: Needs | None = None) -> list[_machine_findings.Finding]:
    """What speaks against two sound machines after a change to the second."""
    machines = {"a": copy.deepcopy(SOUND), "b": copy.deepcopy(SOUND)}
    change(machines["b"])
    return _machine_findings.judge(machines, dict.fromkeys(machines, needs or Needs(memory_bytes=110 * GIB)))


def test_nothing_speaks_against_two_sound_sparks() -> None:
    assert judged() == []


def memory(**kib: int) -> Change:
    return lambda one: one["memory"].update({name: size << 10 for name, size in kib.items()})


def gpu(line: str) -> Change:
    return lambda one: one["gpu"].update(gpus=_machine_text.gpus(line))


@pytest.mark.parametrize(
    ("change", "finding", "severity", "words"),
    [
        (
            lambda b: b["docker"].update(error="permission denied"),
            "docker",
            "error",
            "cannot be used: permission denied",
        ),
        (lambda b: b["docker"].update(runtimes=["runc"]), "docker_runtime", "error", "the runtimes runc only"),
        (lambda b: b.update(requests=False), "python_requests", "error", "no module requests"),
        (lambda b: b["gpu"].update(gpus=[], error="no devices were found"), "gpu", "error", "no devices were found"),
        (
            gpu(GPU.replace("580.173.02", "580.178.04")),
            "driver_parity",
            "warning",
            "580.178.04 here and 580.173.02 on a",
        ),
        (gpu(GPU.replace("3003", "2200")), "clock_parity", "warning", "2200 here and 3003 on a"),
        (lambda b: b.update(kernel="7.0.0-1019-nvidia"), "kernel_parity", "warning", "7.0.0-1019-nvidia here and 6.17"),
        (lambda b: b.update(board_firmware="5.40"), "board_parity", "warning", "5.40 here and 5.36_0ACUM018 on a"),
        (lambda b: b["rdma"]["firmware"].update(rocep1s0f0="28.40"), "rdma_parity", "warning", "28.40 here and 28.45"),
        (lambda b: b["docker"].update(image_store="containerd"), "image_store_parity", "warning", "containerd here"),
        (lambda b: b["docker"].update(version="29.0.0"), "docker_parity", "warning", "29.0.0 here and 28.2.2 on a"),
        (memory(MemAvailable=99 << 20), "memory", "warning", "99.0 GiB of memory are available"),
        (lambda b: b.update(oom_killers=["earlyoom"]), "oom_killer", "warning", "earlyoom runs and ends"),
        (lambda b: b.update(page_size=65536), "page_size", "warning", "has pages of 64 KiB"),
        (lambda b: b["rdma"].update(folder=False), "rdma", "error", "no /dev/infiniband"),
        (
            lambda b: b["ssh"][0].update(error="Permission denied (publickey)."),
            "ssh",
            "error",
            "ssh to spark@192.0.2.2 without a password does not work: Permission denied (publickey).",
        ),
    ],
)
def test_what_is_wrong_with_a_machine_is_named_with_its_remedy(
    change: Change, finding: str, severity: str, words: str
) -> None:
    (found,) = judged(change)
    assert (found.id, found.severity, found.host) == (finding, severity, "b")
    assert words in found.found
    assert found.remedy


def test_everything_wrong_on_every_host_comes_at_once() -> None:
    machines = {"a": copy.deepcopy(SOUND), "b": copy.deepcopy(SOUND)}
    machines["a"]["docker"]["error"] = machines["b"]["docker"]["error"] = "Cannot connect to the Docker daemon"
    machines["b"]["rdma"]["folder"] = False
    found = _machine_findings.judge(machines, dict.fromkeys(machines, Needs()))
    assert [(one.host, one.id) for one in found] == [("a", "docker"), ("b", "docker"), ("b", "rdma")]


def test_a_rehearsal_asks_for_neither_gpu_nor_rdma() -> None:
    def change(one: dict[str, Any]) -> None:
        one["gpu"].update(gpus=[], error="there is no program nvidia-smi on this host")
        one["docker"]["runtimes"] = ["runc"]
        one["rdma"]["folder"] = False

    assert judged(change, Needs(gpu=False, rdma=False)) == []


@pytest.mark.parametrize("error", ["permission denied", "there is no program docker on this host", "Cannot connect"])
def test_each_reason_why_docker_cannot_be_used_has_its_own_remedy(error: str) -> None:
    (found,) = judged(lambda one: one["docker"].update(error=error))
    expected = {"p": "group docker", "t": "install Docker", "C": "systemctl start docker"}[error[0]]
    assert expected in found.remedy


def test_m01_page_cache_is_told_apart_from_memory_that_is_taken() -> None:
    change = memory(MemFree=6 << 20, Cached=108 << 20, MemAvailable=112 << 20)
    (found,) = judged(change)
    assert (found.id, found.severity) == ("page_cache", "warning")
    assert "6.0 GiB of memory are free, 108.1 GiB of the 112.0 GiB available hold cached files" in found.found
    assert "drop_caches" in found.remedy
    # M01: the run includes the step that lets go of the weights.
    assert _weights_findings.release({"snapshots": [{"repository": "org/model"}]}, [found]) == ["b"]
    assert _weights_findings.release({"snapshots": []}, [found]) == []


def test_memory_that_the_pairs_own_rank_holds_is_no_finding() -> None:
    assert judged(memory(MemAvailable=9 << 20, MemFree=5 << 20), Needs(memory_bytes=110 * GIB, running=True)) == []


def test_o16_gpu_memory_that_is_not_available_is_never_zero() -> None:
    (seen,) = _machine_text.gpus(GPU)
    assert (seen["memory_bytes"], seen["memory_used_bytes"], seen["driver"]) == (None, None, "580.173.02")
    assert [one["memory_bytes"] for one in _machine_text.gpu_processes(PROCESSES)] == [91234 << 20, None]


def test_n12_the_signature_of_failing_memory_registration_is_an_error_with_the_safe_remedy_first() -> None:
    def change(one: dict[str, Any]) -> None:
        one["memory"] = _machine_text.meminfo(MEMINFO.replace("65536 kB", "0 kB").replace("60000 kB", "940604 kB"))

    (found,) = judged(change)
    assert (found.id, found.severity) == ("memory_registration", "error")
    assert "6.17.0-1029-nvidia counts CmaFree 940604 kB above CmaTotal 0 kB" in found.found
    assert found.remedy == "boot with kho=off on the kernel's command line"
    (found,) = judged(lambda one: (change(one), one.update(crash_kernel_bytes=256 << 20)))
    assert found.remedy.startswith("a crash kernel has 256 MiB (/sys/kernel/kexec_crash_size): release it first")
    (found,) = judged(change, Needs(rdma=False))
    assert found.severity == "warning"


@pytest.mark.parametrize(("writable", "severity"), [(True, "warning"), (False, "error")])
def test_s06_the_first_path_of_somebody_elses_in_the_cache_is_named(writable: bool, severity: str) -> None:
    foreign = {"path": "/home/spark/.cache/huggingface/hub", "owner": "root"}
    (found,) = judged(lambda one: one["cache"].update(foreign=foreign, writable=writable))
    assert (found.id, found.severity) == ("cache_owner", severity)
    assert found.found == "/home/spark/.cache/huggingface/hub in the cache belongs to root, not to spark"
    assert "sudo chown -R spark: /home/spark/.cache/huggingface" in found.remedy


def test_s04_only_what_is_missing_counts_against_the_disk() -> None:
    twelve = {"free_bytes": 12 * GIB}
    assert judged(lambda one: (one["cache"].update(twelve), one["docker"].update(twelve))) == []


@pytest.mark.parametrize(
    ("image", "weights", "device", "expected"),
    [
        (35, 0, 1, ["20.0 GiB are free on the disk of /var/lib/docker"]),
        (0, 180, 1, ["20.0 GiB are free on the disk of /home/spark/.cache/huggingface"]),
        (15, 15, 1, ["20.0 GiB are free on the disk of /var/lib/docker and /home/spark/.cache/huggingface"]),
        (15, 15, 2, []),
    ],
    ids=["image", "weights", "one disk for both", "a disk each"],
)
def test_a_disk_is_asked_for_everything_that_goes_there(
    image: int, weights: int, device: int, expected: list[str]
) -> None:
    def change(one: dict[str, Any]) -> None:
        one["cache"].update(free_bytes=20 * GIB, device=device)
        one["docker"].update(free_bytes=20 * GIB)

    needs = Needs(image_bytes=image * GIB, cache_bytes=weights * GIB)
    assert [found.found for found in judged(change, needs) if found.host == "b"] == expected


def test_s04_an_amount_that_nobody_could_count_says_so() -> None:
    def change(one: dict[str, Any]) -> None:
        one["cache"].update(free_bytes=20 * GIB, device=2)

    (counted,) = judged(change, Needs(cache_bytes=180 * GIB))
    assert counted.wanted == "180.0 GiB for what is missing of the weights"
    (fixed,) = judged(change, Needs(cache_bytes=180 * GIB, counted=False))
    assert "a fixed amount for the weights (sparkpair_download_free_gb), as nobody could say what is" in fixed.wanted


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("spark@192.0.2.2: Permission denied (publickey).", "`ssh-copy-id spark@192.0.2.2`"),
        ("Host key verification failed.", "accept the host's key once"),
        (
            "ssh: connect to host 192.0.2.2 port 22: No route to host",
            "see that it is on and that `ssh spark@192.0.2.2`",
        ),
        ("ssh: connect to host 192.0.2.2 port 22: Connection timed out", "its address is sparkpair_fabric_address"),
    ],
)
def test_a_host_that_is_away_is_not_asked_for_a_key(error: str, remedy: str) -> None:
    (found,) = judged(lambda one: one["ssh"][0].update(error=error))
    assert remedy in found.remedy


def test_i52_other_containers_that_want_the_gpu_are_named_and_the_pairs_own_are_not() -> None:
    stopped = {**OTHER, "Name": "/asleep", "State": {"Running": False}}
    never = {**stopped, "Name": "/never", "HostConfig": {**OTHER["HostConfig"], "RestartPolicy": {"Name": "no"}}}
    blind = {**OTHER, "Name": "/web", "HostConfig": {"DeviceRequests": None, "RestartPolicy": {"Name": "always"}}}
    own = {**OTHER, "Name": "/glm53-flash-tf"}
    seen = _machine_text.containers([OTHER, stopped, never, blind, own])
    found = judged(lambda one: one["docker"].update(containers=seen), Needs(own=("glm53-flash-tf",)))
    assert [one.found for one in found] == [
        "container vllm (vllm/vllm-openai:latest) runs with the GPU and comes back by itself "
        "(restart policy unless-stopped)",
        "container asleep (vllm/vllm-openai:latest) is stopped, wants the GPU and comes back by itself "
        "(restart policy unless-stopped)",
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("0, NVIDIA GB10, 580.173.02, [N/A], [N/A], 96, 620, 3003, 13.2", ["power_clamp"]),
        ("0, NVIDIA GB10, 580.173.02, [N/A], [N/A], 96, 2200, 3003, 60", []),
        ("0, NVIDIA GB10, 580.173.02, [N/A], [N/A], 0, 208, 3003, 4", []),
        ("0, NVIDIA GB10, 580.173.02, [N/A], [N/A], [N/A], 208, 3003, 4", []),
    ],
    ids=["held down", "capped", "idle", "unknown load"],
)
def test_i55_a_gpu_that_is_held_down_under_load_is_told_from_one_that_idles(line: str, found: list[str]) -> None:
    assert [one.id for one in judged(gpu(line))] == found


def test_the_first_foreign_path_of_a_real_cache_is_found_and_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    (cache / "models--x--y" / "blobs").mkdir(parents=True)
    (cache / "models--x--y" / "link").symlink_to("/etc")
    assert _machine._cache(str(cache))["foreign"] is None
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    for name in ("blobs", "refs"):
        (cache / "models--x--y" / name).mkdir(exist_ok=True)
        os.chown(cache / "models--x--y" / name, 12345, 12345)
    assert _machine._cache(str(cache))["foreign"] == {"path": f"{cache}/models--x--y/blobs", "owner": "12345"}


@pytest.mark.parametrize("program", ["docker", "nvidia-smi", "ssh"])
def test_s08_a_missing_program_is_named(program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = _machine.look("unix:///nowhere.sock", "", ["192.0.2.2"])
    error = {"docker": seen["docker"], "nvidia-smi": seen["gpu"], "ssh": seen["ssh"][0]}[program]["error"]
    assert error == f"there is no program {program} on this host"


def test_a_program_that_ends_others_for_memory_is_found_by_its_real_process(tmp_path: Path) -> None:
    program = tmp_path / "earlyoom"
    program.symlink_to(sys.executable)
    child = subprocess.Popen(
        [program, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdout.readline()
        assert "earlyoom" in _machine.look("unix:///nowhere.sock", "", [])["oom_killers"]
    finally:
        child.communicate(b"\n")
