# SPDX-License-Identifier: Apache-2.0
"""A host as a machine for ranks in containers: kernel, memory, GPU, Docker, RDMA, the cache of weights, ssh.

Every function returns data and raises nothing for what it finds; what a program prints is read in `_machine_text.py`,
what it means is in `_machine_findings.py`. Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _machine_text

_LIMIT_S = 20
_SSH_CONNECT_S = 10
# A cache has some thousand entries; a tree that is larger is no cache, and its first part tells as much.
_MOST_ENTRIES = 200_000


def look(
    docker_host: str, cache: str, ssh_to: Iterable[str], kernel_log: bool = False, root: str = "/"
) -> dict[str, Any]:
    """Return everything about the machine.

    `docker_host` is the daemon's address, `cache` the directory of the weights (empty: none), `ssh_to` the targets that
    must be reachable by key; `kernel_log` has the kernel's log counted through. `root` is the directory that stands for
    / where /proc, /sys and /dev are read.
    """
    return {
        "kernel": os.uname().release,
        "page_size": os.sysconf("SC_PAGE_SIZE"),
        "memory": _machine_text.meminfo(_read(root, "proc/meminfo")),
        "crash_kernel_bytes": int(_read(root, "sys/kernel/kexec_crash_size") or 0),
        "board_firmware": _read(root, "sys/class/dmi/id/bios_version"),
        "oom_killers": _machine_text.oom_killers(_programs(root)),
        "rdma": _rdma(root),
        "gpu": _gpu(),
        "refused_memory": _refused_memory() if kernel_log else None,
        "container_toolkit": _container_toolkit(),
        "docker": docker(docker_host),
        "cache": _cache(cache) if cache else None,
        "ssh": [_ssh(target) for target in ssh_to],
        # What community.docker's modules import on this host.
        "requests": importlib.util.find_spec("requests") is not None,
    }


def versions(machine: dict[str, Any] | None, root: str = "/") -> dict[str, str]:
    """Return what an update changes, as far as the machine was looked at; of any other the system and its kernel."""
    system = _machine_text.os_release(_read(root, "etc/os-release"))
    found = {"operating system": system, "kernel": os.uname().release}
    if machine is not None:
        gpus = machine["gpu"]["gpus"]
        found.update(
            {
                "kernel": machine["kernel"],
                "driver": gpus[0]["driver"] if gpus else "",
                "board firmware": machine["board_firmware"],
                "network firmware": ", ".join(sorted(set(machine["rdma"]["firmware"].values()))),
                "Docker": machine["docker"]["version"],
                "runc": machine["docker"]["runc"],
                "NVIDIA container toolkit": machine["container_toolkit"],
            }
        )
    return {name: value for name, value in found.items() if value}


def docker(docker_host: str) -> dict[str, Any]:
    """Return the daemon at `docker_host`: see `_machine_text.docker_info`, with `containers` and its disk.

    The disk is `free_bytes` and the number of its `device`, None where they cannot be read. `error` says why there is
    no daemon.
    """
    command = ["docker", "-H", docker_host]
    done = _run([*command, "info", "--format", "{{json .}}"])
    found = _machine_text.docker_info("{}" if isinstance(done, str) else done.stdout or "{}")
    if isinstance(done, str) or done.returncode != 0:
        found["error"] = found["error"] or (done if isinstance(done, str) else _last_line(done))
    disk: dict[str, Any] = {"free_bytes": None, "device": None}
    if found["error"]:
        return {**found, **disk, "containers": []}
    ids = _run([*command, "ps", "--all", "--quiet"])
    inspected: list[Any] = []
    if not isinstance(ids, str) and ids.stdout.split():
        listed = _run([*command, "inspect", *ids.stdout.split()])
        # A container that is removed meanwhile makes the command fail, and the others are printed all the same.
        with contextlib.suppress(ValueError):
            inspected = [] if isinstance(listed, str) else json.loads(listed.stdout)
    # A daemon's own directory is closed to others, its disk is not.
    with contextlib.suppress(OSError):
        disk = {"free_bytes": shutil.disk_usage(found["root"]).free, "device": os.stat(found["root"]).st_dev}
    return {**found, **disk, "containers": _machine_text.containers(inspected)}


def _gpu() -> dict[str, Any]:
    done = _run(["nvidia-smi", f"--query-gpu={','.join(_machine_text.GPU_FIELDS)}", "--format=csv,noheader,nounits"])
    if isinstance(done, str):
        return {"gpus": [], "processes": [], "error": done}
    if done.returncode != 0:
        return {"gpus": [], "processes": [], "error": _last_line(done)}
    return {"gpus": _machine_text.gpus(done.stdout), "processes": gpu_processes(), "error": ""}


def gpu_processes() -> list[dict[str, Any]]:
    """Return the processes that the driver knows on the GPU: see `_machine_text.gpu_processes`; none without it."""
    fields = ",".join(_machine_text.PROCESS_FIELDS)
    apps = _run(["nvidia-smi", f"--query-compute-apps={fields}", "--format=csv,noheader,nounits"])
    return [] if isinstance(apps, str) else _machine_text.gpu_processes(apps.stdout)


def _refused_memory() -> int | None:
    """Return how often the driver had no memory to give since the boot, None where this account may not know."""
    done = _run(["journalctl", "--dmesg", "--boot", "--no-pager", "--output", "cat"])
    # Who may not read the kernel's messages is shown an empty log and a hint.
    if isinstance(done, str) or done.returncode != 0 or not done.stdout.strip():
        return None
    return _machine_text.refused_memory(done.stdout)


def _container_toolkit() -> str:
    done = _run(["nvidia-ctk", "--version"])
    return "" if isinstance(done, str) or done.returncode != 0 else _machine_text.toolkit_version(done.stdout)


def _rdma(root: str) -> dict[str, Any]:
    place = os.path.join(root, "sys/class/infiniband")
    names = sorted(os.listdir(place)) if os.path.isdir(place) else []
    return {
        "folder": os.path.isdir(os.path.join(root, "dev/infiniband")),
        "firmware": {name: _read(place, os.path.join(name, "fw_ver")) for name in names},
    }


def _cache(path: str) -> dict[str, Any]:
    """Return whether the cache can be written to, and the first path in it that belongs to somebody else."""
    nearest = path
    while not os.path.lexists(nearest) and os.path.dirname(nearest) != nearest:
        nearest = os.path.dirname(nearest)
    foreign = next(_foreign(path), None)
    return {
        "path": path,
        "user": _name(os.geteuid()),
        "nearest": nearest,
        "writable": os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK),
        "foreign": foreign,
        "free_bytes": shutil.disk_usage(nearest).free if os.path.isdir(nearest) else 0,
        "device": os.stat(nearest).st_dev if os.path.isdir(nearest) else None,
    }


def _foreign(path: str) -> Iterator[dict[str, str]]:
    """Yield what below `path` belongs to another user, in byte order and parents first."""
    own = os.geteuid()
    waiting = [path]
    for _ in range(_MOST_ENTRIES):
        if not waiting:
            return
        place = waiting.pop()
        try:
            seen = os.lstat(place)
        except OSError:
            continue
        if seen.st_uid != own:
            yield {"path": place, "owner": _name(seen.st_uid)}
        if os.path.isdir(place) and not os.path.islink(place):
            with contextlib.suppress(OSError):
                waiting += [
                    os.path.join(place, name) for name in sorted(os.listdir(place), key=os.fsencode, reverse=True)
                ]


def _ssh(target: str) -> dict[str, Any]:
    options = ("BatchMode=yes", f"ConnectTimeout={_SSH_CONNECT_S}")
    done = _run(["ssh", *(word for option in options for word in ("-o", option)), target, "true"])
    if isinstance(done, str):
        return {"target": target, "error": done}
    return {"target": target, "error": "" if done.returncode == 0 else _last_line(done)}


def _programs(root: str) -> list[str]:
    place = os.path.join(root, "proc")
    return [_read(place, os.path.join(entry, "comm")) for entry in os.listdir(place) if entry.isdigit()]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str] | str:
    """Return what a command did, or in words why it could not be run. Its standard input is nobody's."""
    if shutil.which(command[0]) is None:
        return f"{_machine_text.MISSING} {command[0]} on this host"
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not answer within {_LIMIT_S} s"
    except OSError as error:
        return f"{command[0]} could not be run: {error.strerror}"


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit code {done.returncode} without a word"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read(root: str, path: str) -> str:
    with contextlib.suppress(OSError), open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""
