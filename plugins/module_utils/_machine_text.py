# SPDX-License-Identifier: Apache-2.0
"""What a host's programs and files print about its GPU, memory and Docker, as data.

Pure functions over text. Private to the collection, may change at any time.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

GPU_FIELDS = (
    "index",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "clocks.sm",
    "clocks.max.sm",
    "power.draw",
)
PROCESS_FIELDS = ("pid", "process_name", "used_memory")
# GB10 shares its memory with the host, so the driver has no number of its own for it.
_NOT_AVAILABLE = ("[N/A]", "N/A", "[Not Supported]", "")

# How a look says that what it looks with is not installed.
MISSING = "there is no program"

_NO_MEMORY = "NV_ERR_NO_MEMORY"
_OOM_KILLERS = ("earlyoom", "systemd-oomd", "nohang", "oomd")


def meminfo(text: str) -> dict[str, int]:
    """Return the lines of /proc/meminfo that have an amount, in bytes by name."""
    result = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            result[name] = int(words[0]) * 1024
    return result


def os_release(text: str) -> str:
    """Return the name and version of the system from its os-release file, empty without one."""
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    return found.get("PRETTY_NAME", "").strip("\"'")


def toolkit_version(text: str) -> str:
    """Return the version that `nvidia-ctk --version` prints in its first line, empty where it prints none."""
    first = text.partition("\n")[0]
    return first.rpartition("version ")[2].strip() if "version " in first else ""


def gpus(text: str) -> list[dict[str, Any]]:
    """Return what `nvidia-smi --query-gpu` prints for GPU_FIELDS, one dict a GPU; what it has no number for is None.

    Memory is in bytes, clocks in MHz, power in W, utilization in per cent.
    """
    result = []
    for row in _rows(text, GPU_FIELDS):
        memory = {name: _number(row[name], 2**20) for name in ("memory.total", "memory.used")}
        result.append(
            {
                "name": row["name"],
                "driver": row["driver_version"],
                "memory_bytes": memory["memory.total"],
                "memory_used_bytes": memory["memory.used"],
                "utilization": _number(row["utilization.gpu"]),
                "clock_mhz": _number(row["clocks.sm"]),
                "most_clock_mhz": _number(row["clocks.max.sm"]),
                "power_w": _number(row["power.draw"]),
            }
        )
    return result


def gpu_processes(text: str) -> list[dict[str, Any]]:
    """Return what `nvidia-smi --query-compute-apps` prints for PROCESS_FIELDS: `pid`, `name` and `memory_bytes`."""
    return [
        {"pid": int(row["pid"]), "name": row["process_name"], "memory_bytes": _number(row["used_memory"], 2**20)}
        for row in _rows(text, PROCESS_FIELDS)
        if row["pid"].isdigit()
    ]


def gpu_bytes(processes: Iterable[Mapping[str, Any]], pids: Iterable[int]) -> int | None:
    """Return what processes hold of the GPU's memory, None where the driver tells it of none of them."""
    wanted = set(pids)
    known = [one["memory_bytes"] for one in processes if one["pid"] in wanted and one["memory_bytes"] is not None]
    return sum(known) if known else None


def refused_memory(text: str) -> int:
    """Return how often the kernel's log says that the driver had no memory to give."""
    return sum(_NO_MEMORY in line for line in text.splitlines())


def docker_info(text: str) -> dict[str, Any]:
    """Return what of `docker info --format '{{json .}}'` counts.

    `version`, `runc` (the version of the program that starts containers), `root` (its directory), `storage` (driver),
    `image_store` (`containerd` or `classic`), `runtimes`, and `error`, the daemon's own complaint.
    """
    try:
        found = dict(json.loads(text))
    except (ValueError, TypeError):
        found = {"ServerErrors": [f"its answer is not the expected JSON: {text.strip()[:200]!r}"]}
    errors = found.get("ServerErrors") or []
    status = {str(entry[0]): str(entry[1]) for entry in found.get("DriverStatus") or [] if len(entry) == 2}
    return {
        "version": found.get("ServerVersion", ""),
        "runc": str((found.get("RuncCommit") or {}).get("ID", "")),
        "root": found.get("DockerRootDir", ""),
        "storage": found.get("Driver", ""),
        # The containerd store names its snapshotter's plugin type; a classic driver has nothing of the kind.
        "image_store": "containerd" if "containerd.snapshotter" in status.get("driver-type", "") else "classic",
        "runtimes": sorted(found.get("Runtimes") or {}),
        "error": "; ".join(map(str, errors)),
    }


def containers(inspected: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the containers of `docker inspect`: `name`, `image`, `running`, `restart`, `labels`, `gpu` (wants one)."""
    result = []
    for one in inspected:
        host = one.get("HostConfig") or {}
        requests = host.get("DeviceRequests") or []
        # A runtime of NVIDIA's takes the GPU through the environment instead of a request.
        visible = [word for word in one["Config"].get("Env") or [] if word.startswith("NVIDIA_VISIBLE_DEVICES=")]
        asked = any("gpu" in group for request in requests for group in request.get("Capabilities") or [])
        by_runtime = host.get("Runtime") == "nvidia" and visible not in ([], ["NVIDIA_VISIBLE_DEVICES=void"])
        devices = [str(device.get("PathOnHost", "")) for device in host.get("Devices") or []]
        result.append(
            {
                "name": one["Name"].lstrip("/"),
                "image": one["Config"].get("Image", ""),
                "running": bool((one.get("State") or {}).get("Running")),
                "restart": (host.get("RestartPolicy") or {}).get("Name") or "no",
                "labels": one["Config"].get("Labels") or {},
                "gpu": asked or by_runtime or any("/nvidia" in path for path in devices),
            }
        )
    return result


def oom_killers(names: Iterable[str]) -> list[str]:
    """Return which of the running programs end processes for want of memory before the kernel does."""
    return sorted({name for name in names if name in _OOM_KILLERS})


def _rows(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    return [dict(zip(fields, (cell.strip() for cell in line))) for line in lines if len(line) == len(fields)]


def _number(text: str, unit: int = 1) -> Any:
    """Return a number in `unit`s, None where there is none: never 0 for what is not known."""
    if text in _NOT_AVAILABLE:
        return None
    try:
        return float(text) * unit if unit == 1 else int(float(text) * unit)
    except ValueError:
        return None
