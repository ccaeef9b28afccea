# SPDX-License-Identifier: Apache-2.0
"""What a machine's own files say about its kernel, memory, firmware and system is read where Linux has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _machine, _machine_findings, _machine_text

FILES = {
    "proc/meminfo": "MemTotal: 127600000 kB\nMemAvailable: 118000000 kB\nCmaTotal: 0 kB\nCmaFree: 940604 kB\n",
    "proc/4711/comm": "systemd-oomd\n",
    "sys/kernel/kexec_crash_size": "268435456\n",
    "sys/class/dmi/id/bios_version": "5.36_0ACUM018\n",
    "sys/class/infiniband/rocep1s0f0/fw_ver": "28.45.4028\n",
    "dev/infiniband/uverbs0": "",
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\nVERSION_ID="24.04"\n',
}


def tree(root: Path, **changes: str) -> dict[str, Any]:
    """What is seen of a machine that has these files; its programs are none."""
    for name, text in {**FILES, **changes}.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return _machine.look("unix:///nowhere.sock", "", [], root=str(root))


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_n12_the_fault_of_the_kernel_is_read_from_the_machines_own_files(tmp_path: Path) -> None:
    seen = tree(tmp_path)
    assert (seen["memory"]["CmaTotal"], seen["memory"]["CmaFree"]) == (0, 940604 << 10)
    assert seen["crash_kernel_bytes"] == 268435456
    (found,) = _machine_findings._kernel("b", seen, _machine_findings.Needs())
    assert (found.id, found.severity) == ("memory_registration", "error")
    assert f"the kernel {seen['kernel']} counts CmaFree 940604 kB above CmaTotal 0 kB" in found.found
    # What is in the way of the remedy is said before it, and nothing is set by itself.
    assert found.remedy.index("kexec_crash_size") < found.remedy.index("kho=off")


def test_n12_a_kernel_without_crash_memory_or_cma_is_no_fault(tmp_path: Path) -> None:
    seen = tree(tmp_path, **{"proc/meminfo": "MemTotal: 1 kB\nMemAvailable: 1 kB\n", "sys/kernel/kexec_crash_size": ""})
    assert seen["crash_kernel_bytes"] == 0
    assert _machine_findings._kernel("b", seen, _machine_findings.Needs()) == []


def program(place: Path, text: str) -> None:
    """Install a program that prints a text and says nothing else."""
    place.parent.mkdir(exist_ok=True)
    place.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}END\n")
    place.chmod(0o755)


def test_o16_refusals_of_memory_are_counted_and_what_may_not_be_read_is_not_none_at_all(tmp_path: Path) -> None:
    def counted() -> Any:
        return _machine.look("unix:///nowhere.sock", "", [], kernel_log=True, root=str(tmp_path))["refused_memory"]

    assert tree(tmp_path)["refused_memory"] is None
    assert counted() is None
    journal = tmp_path / "empty" / "journalctl"
    program(journal, "NVRM: Out of memory [NV_ERR_NO_MEMORY] (0x51)\nusb: new\nNVRM: [NV_ERR_NO_MEMORY]\n")
    assert counted() == 2
    program(journal, "usb: new\n")
    assert counted() == 0
    # Who may not read it gets nothing and a hint on the other stream.
    program(journal, "")
    assert counted() is None


def test_o16_memory_on_the_gpu_is_that_of_a_containers_own_processes(tmp_path: Path) -> None:
    program(tmp_path / "empty" / "nvidia-smi", "4712, /usr/bin/python3, 82043\n4713, python3, 10\n99, Xorg, 120\n")
    seen = _machine.gpu_processes()
    assert _machine_text.gpu_bytes(seen, {4711, 4712, 4713}) == 82053 << 20
    assert _machine_text.gpu_bytes(seen, {5}) is None


def test_o14_everything_that_an_update_changes_is_recorded(tmp_path: Path) -> None:
    seen = tree(tmp_path)
    seen["gpu"]["gpus"] = [{"driver": "580.173.02"}]
    seen["docker"].update(_machine_text.docker_info('{"ServerVersion": "28.2.2", "RuncCommit": {"ID": "v1.2.5"}}'))
    seen["container_toolkit"] = _machine_text.toolkit_version(
        "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\n"
    )
    assert _machine.versions(seen, root=str(tmp_path)) == {
        "operating system": "Ubuntu 24.04.3 LTS",
        "kernel": seen["kernel"],
        "driver": "580.173.02",
        "board firmware": "5.36_0ACUM018",
        "network firmware": "28.45.4028",
        "Docker": "28.2.2",
        "runc": "v1.2.5",
        "NVIDIA container toolkit": "1.17.8",
    }


def test_o14_what_was_not_looked_at_is_not_recorded_as_a_version(tmp_path: Path) -> None:
    seen = tree(tmp_path)
    assert set(_machine.versions(seen, root=str(tmp_path))) == {
        "operating system",
        "kernel",
        "board firmware",
        "network firmware",
    }
    assert set(_machine.versions(None, root=str(tmp_path))) == {"operating system", "kernel"}
