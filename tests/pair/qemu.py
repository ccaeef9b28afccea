# SPDX-License-Identifier: Apache-2.0
"""One virtual machine as a QEMU process: its command line, and the monitor by which it is told things."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

from tests.pair import layout
from tests.pair.disk import Disks

PROGRAM = shutil.which("qemu-system-x86_64")
MEMORY_MIB = 2048
# One each, because two would have more to tell each other than an emulated pair of processors gains.
PROCESSORS = 1
# Without what an emulated processor does slowly, and with its own counter for a clock: any other device costs an exit.
CHEAP = (
    "quiet apparmor=0 selinux=0 audit=0 mitigations=off 8250.nr_uarts=1 rcupdate.rcu_expedited=1"
    " tsc=reliable clocksource=tsc"
)
EMULATED = "max,la57=off,smap=off,smep=off,pku=off,umip=off,erms=off,fsrm=off"
_MONITOR_LIMIT_S = 60
_LAN_GROUP = "239.83.80.1"


def accelerator() -> list[str]:
    """Return QEMU's options for the processor: the machine's own where it can be lent, else an emulated one."""
    lendable = re.search(r"^flags\s*:.*\b(vmx|svm)\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if lendable and os.access("/dev/kvm", os.R_OK | os.W_OK):
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi", "-cpu", EMULATED]


def command(
    name: str, count: int, disks: Disks, home: Path, forwards: dict[int, int], lan: int, wires: dict[str, int]
) -> list[str]:
    """Return the command that runs a machine of `count`.

    `forwards` is by port of the guest the port on loopback that leads there, `lan` the port of the group on loopback
    that is the LAN; `wires` is by wire the descriptor of its socket. The disks are written to beside
    what they are made of, in files that are gone with the process.
    """
    number = layout.NAMES.index(name) + 1
    kernel = f"root=/dev/vda rw console=ttyS0 {CHEAP} pair.number={number}"
    words = [
        *(str(PROGRAM), "-name", name, "-nodefaults", "-no-user-config", "-display", "none", "-no-shutdown"),
        *accelerator(),
        *("-m", str(MEMORY_MIB), "-smp", str(PROCESSORS), "-device", "virtio-rng-pci"),
        *("-kernel", str(disks.kernel), "-initrd", str(disks.initrd)),
        *("-append", f"{kernel} systemd.hostname={name}"),
        *("-serial", f"file:{console(home, name)}", "-qmp", f"unix:{monitor(home, name)},server=on,wait=off"),
    ]
    for label, disk in (("root", disks.root), ("docker", disks.docker)):
        words += ["-drive", f"file={disk},format=raw,if=none,id={label},snapshot=on,cache=unsafe"]
        words += ["-device", f"virtio-blk-pci,drive={label}"]
    forwarded = "".join(f",hostfwd=tcp:127.0.0.1:{outer}-:{inner}" for inner, outer in forwards.items())
    for nic in layout.nics(name, count):
        if nic.name == layout.MANAGEMENT:
            backend = f"user,id={nic.name},restrict=on{forwarded}"
        elif nic.name == layout.LAN:
            backend = f"socket,id={nic.name},mcast={_LAN_GROUP}:{lan},localaddr=127.0.0.1"
        else:
            backend = f"dgram,id={nic.name},local.type=fd,local.str={wires[nic.wire]}"
        words += ["-netdev", backend]
        words += ["-device", f"virtio-net-pci,id=card-{nic.name},netdev={nic.name},mac={nic.mac},romfile="]
    return words


def console(home: Path, name: str) -> Path:
    """Return the file with everything that the machine has said on its console."""
    return home / f"{name}.console"


def monitor(home: Path, name: str) -> Path:
    """Return the socket of the machine's monitor."""
    return home / f"{name}.monitor"


def tell(path: Path, execute: str, **arguments: Any) -> Any:
    """Have the monitor at `path` execute a command and return its result. Raises RuntimeError when it refuses."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as link:
        link.settimeout(_MONITOR_LIMIT_S)
        link.connect(str(path))
        with link.makefile("rw", encoding="utf-8") as stream:
            stream.readline()
            for request in ({"execute": "qmp_capabilities"}, {"execute": execute, "arguments": arguments}):
                stream.write(json.dumps(request) + "\n")
                stream.flush()
                # Events come between, answers have one of two keys.
                while not {"return", "error"} & (answer := json.loads(stream.readline())).keys():
                    continue
                if "error" in answer:
                    raise RuntimeError(f"{path.stem}: {execute}: {answer['error']['desc']}")
    return answer["return"]
