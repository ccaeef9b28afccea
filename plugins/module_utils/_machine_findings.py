# SPDX-License-Identifier: Apache-2.0
"""What speaks against ranks in containers on a machine, judged from the looks of `_machine.py` at every host.

Pure. Errors are what no start survives; everything else warns and stops nothing. Private to the collection, may change
at any time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _machine_parity
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import ADAPTERS
from ansible_collections.sparkpair.serving.plugins.module_utils._findings import ERROR, WARNING, Finding
from ansible_collections.sparkpair.serving.plugins.module_utils._machine_text import MISSING

GIB = 2**30
GB = 10**9
# Below this a GB10 that works is not saving power but held down by its firmware, which only a full power drain ends.
CLAMPED_MHZ = 1000
BUSY_PER_CENT = 50
# Drivers of this branch were reported to block for ever while CUDA graphs are captured.
DOUBTFUL_DRIVERS = ("590.",)
USUAL_PAGE = 4096

Machine = Mapping[str, Any]


@dataclass(frozen=True)
class Needs:
    """What the ranks of one host need: a GPU, RDMA, memory, disk, and the containers that are the pair's own.

    Sizes are in bytes and count what is missing only; 0 asks for nothing. `counted` says that `cache_bytes` is what is
    missing, and not an amount for when nobody could say. `running` says that the pair's own rank runs there, so that
    its memory is taken by itself.
    """

    gpu: bool = True
    rdma: bool = True
    memory_bytes: int = 0
    image_bytes: int = 0
    cache_bytes: int = 0
    counted: bool = True
    own: tuple[str, ...] = ()
    running: bool = False


def needs_of(plan: Mapping[str, Any], settings: Mapping[str, Any], probe: Mapping[str, Any]) -> Needs:
    """Return what the rank of a host needs by its plan and settings."""
    engine = ADAPTERS[plan["engine"]]
    return Needs(
        gpu=engine.USES_GPU,
        rdma=engine.uses_rdma(settings) and settings["link"] not in ("tcp", "loopback") and not plan["one_machine"],
        memory_bytes=int(engine.FREE_MEMORY_GIB * GIB),
        image_bytes=0 if _has_image(plan, probe) else settings["image_free_gb"] * GB,
        own=(settings["container_name"],),
        running=any(rank["state"] == "running" for rank in probe["ranks"]),
    )


def _has_image(plan: Mapping[str, Any], probe: Mapping[str, Any]) -> bool:
    """Say whether the image is there; one that is not made here is known by its name only."""
    image = (probe.get("container") or {}).get("image") or {}
    return bool(image.get("exists")) and plan["image"]["hash"] in ("", image["patches"])


def judge(machines: Mapping[str, Machine], needs: Mapping[str, Needs]) -> list[Finding]:
    """Return every finding: host by host in the given order, then those about what must be alike."""
    findings: list[Finding] = []
    for host, machine in machines.items():
        for check in _CHECKS:
            findings += check(host, machine, needs[host])
    return findings + _machine_parity.judge(machines, any(need.gpu for need in needs.values()))


def _docker(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    seen = machine["docker"]
    findings = []
    if seen["error"]:
        findings.append(
            Finding(
                id="docker",
                severity=ERROR,
                host=host,
                found=f"Docker cannot be used: {seen['error']}",
                wanted="a daemon that this account may talk to",
                remedy=_docker_remedy(seen["error"]),
            )
        )
    elif needs.gpu and "nvidia" not in seen["runtimes"]:
        findings.append(
            Finding(
                id="docker_runtime",
                severity=ERROR,
                host=host,
                found=f"Docker has the runtimes {', '.join(seen['runtimes'])} only",
                wanted="NVIDIA's container runtime",
                remedy="install nvidia-container-toolkit, run `nvidia-ctk runtime configure`, and restart Docker",
            )
        )
    if not machine["requests"]:
        findings.append(
            Finding(
                id="python_requests",
                severity=ERROR,
                host=host,
                found="the Python that runs the modules has no module requests",
                wanted="that module, with which containers are managed",
                remedy="install python3-requests, or name a Python that has it in ansible_python_interpreter",
            )
        )
    return findings


def _docker_remedy(error: str) -> str:
    if "permission denied" in error.lower():
        return "add the account to the group docker (`sudo usermod -aG docker USER`) and log in anew"
    if MISSING in error:
        return "install Docker"
    return "start it (`sudo systemctl start docker`) and see what its log says, or correct sparkpair_docker_host"


def _disk(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    """Return what is missing on the disks; one disk has to hold both the image and the weights."""
    docker, cache = machine["docker"], machine["cache"]
    asked = [(needs.image_bytes, docker["free_bytes"], docker["root"], "the image")]
    if cache:
        asked.append((needs.cache_bytes, cache["free_bytes"], cache["path"], "the weights"))
    uncounted = ", a fixed amount for the weights (sparkpair_download_free_gb), as nobody could say what is missing"
    asked = [one for one in asked if one[0] and one[1] is not None]
    if len(asked) == 2 and cache["device"] == docker["device"]:
        (image, free, root, _), (weights, _, path, _) = asked
        asked = [(image + weights, free, f"{root} and {path}", "the image and the weights")]
    return [
        Finding(
            id="disk",
            severity=ERROR,
            host=host,
            found=f"{_gib(free)} are free on the disk of {path}",
            wanted=f"{_gib(need)} for what is missing of {what}"
            + (uncounted if "weights" in what and not needs.counted else ""),
            remedy="free some space there, or move it to a larger disk",
        )
        for need, free, path, what in asked
        if free < need
    ]


def _cache(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    seen = machine["cache"]
    if not seen:
        return []
    if seen["foreign"]:
        found = f"{seen['foreign']['path']} in the cache belongs to {seen['foreign']['owner']}, not to {seen['user']}"
    elif not seen["writable"]:
        found = f"{seen['user']} may not write to {seen['nearest']}, where the cache {seen['path']} is"
    else:
        return []
    return [
        Finding(
            id="cache_owner",
            severity=ERROR if not seen["writable"] else WARNING,
            host=host,
            found=found,
            wanted=f"a cache that belongs to {seen['user']} throughout",
            remedy=f"give it back: `sudo chown -R {seen['user']}: {seen['path']}`",
        )
    ]


def _gpu(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    seen = machine["gpu"]
    if not needs.gpu:
        return []
    if seen["error"] or not seen["gpus"]:
        return [
            Finding(
                id="gpu",
                severity=ERROR,
                host=host,
                found=f"no GPU can be used: {seen['error'] or 'nvidia-smi lists none'}",
                wanted="a GPU with NVIDIA's driver",
                remedy="install NVIDIA's driver with its programs"
                if MISSING in seen["error"]
                else "see `nvidia-smi` and `dmesg | grep -i nvrm` there; a reboot helps after a driver update",
            )
        ]
    findings = []
    gpu = seen["gpus"][0]
    if gpu["driver"].startswith(DOUBTFUL_DRIVERS):
        findings.append(
            Finding(
                id="driver",
                severity=WARNING,
                host=host,
                found=f"the driver is {gpu['driver']}",
                wanted="a branch that is known to work, such as 580",
                remedy="keep it in mind if a start blocks while graphs are captured",
            )
        )
    busy = gpu["utilization"] is not None and gpu["utilization"] >= BUSY_PER_CENT
    if busy and gpu["clock_mhz"] is not None and gpu["clock_mhz"] < CLAMPED_MHZ:
        power = f" and {gpu['power_w']:.0f} W" if gpu["power_w"] is not None else ""
        findings.append(
            Finding(
                id="power_clamp",
                severity=WARNING,
                host=host,
                found=f"the GPU runs at {gpu['clock_mhz']:.0f} MHz{power} while it is {gpu['utilization']:.0f} % busy",
                wanted="a clock near 2000 MHz under load",
                remedy="its firmware holds it down: shut down, unplug the power for a minute, start again",
            )
        )
    return findings


def _containers(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    findings = []
    for other in machine["docker"]["containers"]:
        if not other["gpu"] or other["name"] in needs.own:
            continue
        back = f" and comes back by itself (restart policy {other['restart']})" if other["restart"] != "no" else ""
        if other["running"] or back:
            state = "runs with the GPU" if other["running"] else "is stopped, wants the GPU"
            findings.append(
                Finding(
                    id="other_container",
                    severity=WARNING,
                    host=host,
                    found=f"container {other['name']} ({other['image']}) {state}{back}",
                    wanted="nothing else large on the GPU",
                    remedy=f"stop it if its memory is needed: `docker stop {other['name']}`",
                )
            )
    return findings


def _memory(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    seen = machine["memory"]
    if not needs.memory_bytes or needs.running:
        return []
    available, free = seen.get("MemAvailable", 0), seen.get("MemFree", 0)
    if available < needs.memory_bytes:
        return [
            Finding(
                id="memory",
                severity=WARNING,
                host=host,
                found=f"{_gib(available)} of memory are available",
                wanted=f"{_gib(needs.memory_bytes)} for the plan",
                remedy="stop other programs there, or lower sparkpair_context",
            )
        ]
    if needs.gpu and free < needs.memory_bytes:
        cached = _gib(seen.get("Cached", 0) + seen.get("Buffers", 0))
        return [
            Finding(
                id="page_cache",
                severity=WARNING,
                host=host,
                found=f"{_gib(free)} of memory are free, {cached} of the {_gib(available)} available hold cached files",
                wanted=f"{_gib(needs.memory_bytes)} free, because the GPU counts cached files as used",
                remedy="nothing where it is the weights, which are let go of before the start; for everything else "
                "`sync; echo 1 | sudo tee /proc/sys/vm/drop_caches`",
            )
        ]
    return []


def _oom_killers(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    return [
        Finding(
            id="oom_killer",
            severity=WARNING,
            host=host,
            found=f"{name} runs and ends large processes before memory runs out",
            wanted="none of its kind, or one that spares the ranks",
            remedy=f"disable it: `sudo systemctl disable --now {name}`",
        )
        for name in machine["oom_killers"]
    ]


def _kernel(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    findings = []
    if machine["page_size"] != USUAL_PAGE:
        findings.append(
            Finding(
                id="page_size",
                severity=WARNING,
                host=host,
                found=f"the kernel {machine['kernel']} has pages of {machine['page_size'] // 1024} KiB",
                wanted="pages of 4 KiB; uploads from a memory map are known to hang with larger ones",
                remedy="boot a kernel with 4 KiB pages",
            )
        )
    total, free = machine["memory"].get("CmaTotal"), machine["memory"].get("CmaFree")
    if total is not None and free is not None and free > total:
        reserved = machine["crash_kernel_bytes"]
        remedy = "boot with kho=off on the kernel's command line"
        if reserved:
            remedy = (
                f"a crash kernel has {reserved >> 20} MiB (/sys/kernel/kexec_crash_size): release it first, then boot "
                "with kho=off on the kernel's command line, or boot an earlier kernel"
            )
        findings.append(
            Finding(
                id="memory_registration",
                severity=ERROR if needs.rdma else WARNING,
                host=host,
                found=f"the kernel {machine['kernel']} counts CmaFree {free >> 10} kB above CmaTotal {total >> 10} kB; "
                "RDMA cannot register memory then (ibv_reg_mr: Cannot allocate memory)",
                wanted="a kernel whose CmaFree is not above CmaTotal",
                remedy=remedy,
            )
        )
    return findings


def _rdma(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    if not needs.rdma or machine["rdma"]["folder"]:
        return []
    return [
        Finding(
            id="rdma",
            severity=ERROR,
            host=host,
            found="there is no /dev/infiniband, which the containers get their RDMA devices from",
            wanted="the devices of the ConnectX ports",
            remedy="install rdma-core and load ib_uverbs (`sudo modprobe ib_uverbs`)",
        )
    ]


def _ssh(host: str, machine: Machine, needs: Needs) -> list[Finding]:
    return [
        Finding(
            id="ssh",
            severity=ERROR,
            host=host,
            found=f"ssh to {each['target']} without a password does not work: {each['error']}",
            wanted="a way to send image and weights straight to the other host",
            remedy="install openssh-client"
            if MISSING in each["error"]
            else _ssh_remedy(host, each["target"], each["error"]),
        )
        for each in machine["ssh"]
        if each["error"]
    ]


def _ssh_remedy(host: str, target: str, error: str) -> str:
    if re.search("permission denied|host key|authentication", error, re.IGNORECASE):
        return f"put this account's key there (`ssh-copy-id {target}`) and accept the host's key once"
    return (
        f"see that it is on and that `ssh {target}` works from {host}; its address is sparkpair_fabric_address of that "
        "host, or else its ansible_host"
    )


_CHECKS: tuple[Callable[[str, Machine, Needs], list[Finding]], ...] = (
    _docker,
    _disk,
    _cache,
    _gpu,
    _containers,
    _memory,
    _oom_killers,
    _kernel,
    _rdma,
    _ssh,
)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"
