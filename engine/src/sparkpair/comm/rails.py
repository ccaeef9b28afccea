# SPDX-License-Identifier: Apache-2.0
"""Rails as the command line names them, `DEVICE:GID_INDEX,...`, and what the kernel says about each before it is used.

Reads sysfs only: this can be asked without memory, libraries or rights, and on a machine that has no RDMA at all.
"""

from __future__ import annotations

import ipaddress
import pathlib
import re
from dataclasses import dataclass

from sparkpair.errors import UserError

FLAG = "--roce-rails"
MAX_RAILS = 4
PORT = "1"

_FORM = re.compile(r"(?P<device>[A-Za-z0-9_.-]+):(?P<index>\d{1,3})")
_SYSFS = pathlib.Path("/sys")


@dataclass(frozen=True, slots=True)
class RailName:
    """One entry of the list: an RDMA device and the index of its GID."""

    device: str
    gid_index: int

    def __str__(self) -> str:
        return f"{self.device}:{self.gid_index}"


@dataclass(frozen=True, slots=True)
class Rail:
    """A usable end of a rail. `gid` are the 16 bytes at the index, `netdev` its port's network device."""

    name: RailName
    gid: bytes
    netdev: str

    def __str__(self) -> str:
        return f"{self.name.device} ({self.netdev}, {_in_words(self.gid)})"


def parse_rails(text: str) -> tuple[RailName, ...]:
    """The rails that a person named. Raises UserError."""
    names = []
    for part in text.split(","):
        found = _FORM.fullmatch(part.strip())
        if found is None:
            raise UserError(f"{FLAG} {text}: {part!r} is not DEVICE:GID_INDEX, as in rocep1s0f0:3,roceP2p1s0f0:3")
        names.append(RailName(found["device"], int(found["index"])))
    if len({name.device for name in names}) < len(names):
        raise UserError(f"{FLAG} {text}: a device is named twice")
    if len(names) > MAX_RAILS:
        raise UserError(f"{FLAG} {text}: {len(names)} rails, and {MAX_RAILS} are the most")
    return tuple(names)


def look_at_rails(names: tuple[RailName, ...], sysfs: pathlib.Path = _SYSFS) -> list[Rail]:
    """Check that every rail's port is there, ACTIVE, and has a RoCE v2 GID at its index. Raises UserError."""
    devices = sysfs / "class" / "infiniband"
    there = sorted(each.name for each in devices.iterdir()) if devices.is_dir() else []
    if not there:
        raise UserError(
            "--comm roce: this machine has no RDMA device (/sys/class/infiniband has none). Use --comm torch, or load "
            "the network adapter's RDMA driver"
        )
    return [_look(name, devices, there) for name in names]


def port_state(name: RailName, sysfs: pathlib.Path = _SYSFS) -> str:
    """The state of the rail's port now, such as ACTIVE or DOWN."""
    # It reads as "4: ACTIVE".
    return _read(_port(sysfs / "class" / "infiniband", name) / "state").rpartition(":")[2].strip() or "gone"


def _look(name: RailName, devices: pathlib.Path, there: list[str]) -> Rail:
    if name.device not in there:
        raise UserError(f"{FLAG} {name}: this machine has no RDMA device {name.device}; it has {', '.join(there)}")
    port = _port(devices, name)
    state = port_state(name, devices.parent.parent)
    if state != "ACTIVE":
        raise UserError(
            f"{FLAG} {name}: the port of {name.device} is {state}, not ACTIVE. Check its cable, and that its network "
            "device is up and has an address"
        )
    gid = _gid(port, name.gid_index)
    kind = _read(port / "gid_attrs" / "types" / str(name.gid_index))
    if not any(gid) or "v2" not in kind.lower():
        found = f"is of type {kind}" if any(gid) else "is empty"
        raise UserError(f"{FLAG} {name}: the GID at index {name.gid_index} {found}. {_usable(port, name.device)}")
    return Rail(name, gid, _read(port / "gid_attrs" / "ndevs" / str(name.gid_index)) or "no netdev")


def _usable(port: pathlib.Path, device: str) -> str:
    """Which indexes could be meant."""
    found = []
    for entry in sorted((port / "gids").iterdir(), key=lambda entry: int(entry.name)):
        gid = _gid(port, int(entry.name))
        if any(gid) and "v2" in _read(port / "gid_attrs" / "types" / entry.name).lower():
            found.append(f"{entry.name} ({_in_words(gid)})")
    return f"RoCE v2 GIDs of {device}: {', '.join(found)}" if found else f"{device} has no RoCE v2 GID at all"


def _port(devices: pathlib.Path, name: RailName) -> pathlib.Path:
    return devices / name.device / "ports" / PORT


def _gid(port: pathlib.Path, index: int) -> bytes:
    text = _read(port / "gids" / str(index))
    return ipaddress.IPv6Address(text).packed if text else bytes(16)


def _in_words(gid: bytes) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def _read(path: pathlib.Path) -> str:
    # Reading the type of an empty entry is an error of the kernel's, not of ours.
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
