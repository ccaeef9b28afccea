# SPDX-License-Identifier: Apache-2.0
"""What status.yml tells of a pair, rendered from recorded probes: roles, memory on unified machines, rails, stalls."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jinja2
from ansible_collections.sparkpair.serving.plugins.module_utils import _machine_text

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
GPU = "0, NVIDIA GB10, 580.173.02, [N/A], [N/A], 96, 2208, 3003, 44.51\n"
# As GB10's driver lists them: by process, and of one that draws no number.
PROCESSES = "4712, /usr/bin/python3, 82043\n4713, /usr/bin/python3, [N/A]\n99, /usr/lib/xorg/Xorg, 120\n"
MEMORY = {"total_bytes": 130_600_000_000, "available_bytes": 7_520_000_000}
HEALTH = {
    "ok": True,
    "model": "GLM-5.3-Flash-EXL3",
    "context_length": 1048576,
    "requests_running": 2,
    "requests_total": 41,
    "prompt_tokens_total": 900_000,
    "cached_tokens_total": 700_000,
    "completion_tokens_total": 55_300,
    "decode_seconds_total": 1000.0,
    "iteration_s": 0.02,
    "pool_tokens": 2922496,
    "pool_free_tokens": 2000000,
    "kept_prompts": 3,
}


def rank(number: int, pids: list[int], processes: str = PROCESSES) -> dict[str, Any]:
    return {
        "rank": number,
        "container": "glm53-flash-tf",
        "state": "running",
        "words": "running",
        "pid": pids[0],
        "pids": pids,
        "uptime_s": 7384,
        "rss_bytes": 3 << 30,
        "gpu_bytes": _machine_text.gpu_bytes(_machine_text.gpu_processes(processes), pids),
        "rails": ["rocep1s0f0", "roceP2p1s0f0"],
        "log": "docker logs glm53-flash-tf",
    }


def probe(number: int, **of_the_rank: Any) -> dict[str, Any]:
    return {
        "user": "spark",
        "memory": MEMORY,
        "ranks": [rank(number, [4711, 4712], **of_the_rank)],
        "updates": [],
        "machine": {"gpu": {"gpus": _machine_text.gpus(GPU)}, "refused_memory": 0},
        "container": {"error": ""},
        "autostart": {"supervisor": None},
        "endpoint": {"url": "http://127.0.0.1:8888", "ready": True, "health": copy.deepcopy(HEALTH), "error": ""}
        if number == 0
        else {},
    }


def told(head: dict[str, Any], worker: dict[str, Any] | None, watchdog_s: int = 300) -> str:
    """The text for two hosts; no worker is one that could not be looked at."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PLAYBOOKS / "templates"), trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    hosts = {"spark-1": {"__preflight_probe": {"probe": head}}, "spark-2": {}}
    if worker:
        hosts["spark-2"] = {"__preflight_probe": {"probe": worker}}
    settings = {"runtime": "container", "served_name": "GLM", "watchdog_s": watchdog_s}
    return environment.get_template("status.txt.j2").render(
        __settings_resolved={
            "plan": {"ranks": [{"host": "spark-1", "rank": 0}, {"host": "spark-2", "rank": 1}]},
            "settings": settings,
        },
        hostvars=hosts,
        ansible_play_hosts_all=list(hosts),
    )


def test_o16_both_roles_their_memory_their_rails_and_what_was_served_are_told() -> None:
    text = told(probe(0), probe(1)).splitlines()
    memory = "80.12 GiB of the GPU's memory and 3.00 GiB of memory, rails rocep1s0f0 and roceP2p1s0f0"
    for number, host in enumerate(("spark-1", "spark-2")):
        begun = f"{host}: rank {number} runs, container glm53-flash-tf, process 4711, up 2 h 03 min 04 s, {memory}"
        assert any(line.startswith(begun) for line in text)
        assert f"{host}: 7.0 GiB of 121.6 GiB available" in text
    assert "speed    55.3 tokens of a reply a second, on average since the start" in text
    assert "served   41 requests, 900000 prompt tokens (700000 from kept prompts), 55300 of replies" in text
    assert "pool     2000000 of 2922496 tokens free, 3 prompts kept" in text
    assert not [line for line in text if "NV_ERR" in line or "STALLED" in line]


def test_o16_what_the_driver_does_not_tell_is_said_and_never_zero() -> None:
    for processes in ("", "4712, /usr/bin/python3, [N/A]\n", "4712, /usr/bin/python3, [Not Supported]\n"):
        text = told(probe(0, processes=processes), probe(1))
        assert "3.00 GiB of memory (what it holds on the GPU the driver does not tell)" in text
        assert "0.00 GiB" not in text


def test_o16_refusals_of_memory_are_counted_from_the_kernels_log_and_an_unread_log_is_no_zero() -> None:
    log = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)\nusb 1-1: new\n"
    head, worker = probe(0), probe(1)
    head["machine"]["refused_memory"] = _machine_text.refused_memory(log * 22)
    worker["machine"]["refused_memory"] = None
    text = told(head, worker)
    assert "spark-1: the driver had no memory to give 22 times since the boot (NV_ERR_NO_MEMORY" in text
    assert "spark-2: spark may not read the kernel's log" in text


def test_o16_a_rank_that_ended_and_a_host_that_is_away_are_told_apart() -> None:
    head = probe(0)
    head["ranks"] = [{"rank": 0, "container": "x", "state": "ended", "words": "ended with exit code 4", "pid": None}]
    head["ranks"][0]["last_words"] = "fatal: rank 1 left"
    head["endpoint"] = {}
    text = told(head, None)
    assert "spark-1: rank 0 ended with exit code 4" in text
    assert "spark-1: the last it said: fatal: rank 1 left" in text
    assert "spark-2: could not be looked at" in text


def test_o10_a_step_that_takes_too_long_is_told_with_its_age_and_where_the_stacks_are() -> None:
    head = probe(0)
    head["endpoint"]["health"]["iteration_s"] = 312.4
    text = told(head, probe(1))
    assert "STALLED: the step that runs has taken 312 s; the stacks of every rank that is in it are in its log" in text
    assert "STALLED" not in told(head, probe(1), watchdog_s=600)
    # Without a watchdog nobody has written stacks, and the age counts all the same.
    text = told(head, probe(1), watchdog_s=0)
    assert "STALLED: the step that runs has taken 312 s; see logs.yml" in text


def test_o14_what_an_update_has_changed_is_told_of_a_rank_that_does_not_run() -> None:
    worker = probe(1)
    worker["updates"] = [{"name": "kernel", "before": "6.17.0", "now": "7.0.0"}]
    assert "kernel" not in told(probe(0), worker)
    worker["ranks"] = []
    assert "spark-2: kernel 6.17.0 of the last good start is 7.0.0 now" in told(probe(0), worker)
