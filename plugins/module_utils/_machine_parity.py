# SPDX-License-Identifier: Apache-2.0
"""What should be alike on the machines of a pair and is not: kernel, driver, clocks, firmware, Docker.

Pure: judged from the looks of `_machine.py` at every host. Differences warn and stop nothing. Private to the
collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._findings import WARNING, Finding

Machine = Mapping[str, Any]


def judge(machines: Mapping[str, Machine], gpu: bool) -> list[Finding]:
    """Return what differs between hosts, each with its own value and the first host's; of the GPUs only with `gpu`."""
    subjects: Sequence[tuple[str, str, Callable[[Machine], Any], str]] = (
        ("kernel_parity", "the kernel", lambda one: one["kernel"], "bring both to the same release"),
        ("driver_parity", "the GPU's driver", lambda one: _first(one, "driver"), "bring both to the same release"),
        (
            "clock_parity",
            "the GPU's highest clock in MHz",
            lambda one: _first(one, "most_clock_mhz"),
            "see `nvidia-smi -q -d CLOCK`",
        ),
        (
            "board_parity",
            "the board's firmware",
            lambda one: one["board_firmware"],
            "update the older one (`fwupdmgr update`)",
        ),
        ("rdma_parity", "the RDMA firmware", _rdma_firmware, "update the older one"),
        ("docker_parity", "Docker", lambda one: one["docker"]["version"], "bring both to the same release"),
        (
            "image_store_parity",
            "Docker's image store",
            lambda one: one["docker"]["image_store"],
            "nothing: images are compared by their content, though ids differ",
        ),
    )
    findings = []
    for name, title, value, remedy in subjects:
        if not gpu and name in ("driver_parity", "clock_parity"):
            continue
        known = [(host, value(machine)) for host, machine in machines.items() if value(machine)]
        for host, found in known[1:]:
            if found != known[0][1]:
                findings.append(
                    Finding(
                        id=name,
                        severity=WARNING,
                        host=host,
                        found=f"{title} is {_shown(found)} here and {_shown(known[0][1])} on {known[0][0]}",
                        wanted="the same on every host",
                        remedy=remedy,
                    )
                )
    return findings


def _first(machine: Machine, name: str) -> Any:
    gpus = machine["gpu"]["gpus"]
    return gpus[0][name] if gpus else None


def _rdma_firmware(machine: Machine) -> str:
    return ", ".join(sorted(set(filter(None, machine["rdma"]["firmware"].values()))))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
