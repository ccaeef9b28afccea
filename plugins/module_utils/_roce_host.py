# SPDX-License-Identifier: Apache-2.0
"""Network ports and RDMA devices of this host: what sysfs, `ip` and `ping` say, as data.

Judges nothing; what the data means is in `_rails.py`. Private to the collection, may change at any time.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PORT = "1"
_ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_PING_WAIT_S = 2
_COMMAND_LIMIT_S = 20
# More pings at once would only wait for each other.
_PINGS_AT_ONCE = 16


class MissingTool(Exception):
    """A program that is needed here is not installed. The text says how to get it."""


def look(sysfs: str, names: Iterable[str]) -> dict[str, Any]:
    """Return `netdevs`, `devices`, the `default` route and the IPv4 addresses that `names` resolve to (`resolved`).

    A netdev has `name`, `up`, `mtu` (bytes), `addresses` (IPv4, each with `address` and `prefix`) and `devices`, the
    names of its RDMA devices. A device has `state`, `firmware` and `gids` without the all-zero ones, each with
    `index`, `gid` and `type`. `sysfs` is the directory that stands for /sys. Raises MissingTool.
    """
    over = _devices_over(sysfs)
    netdevs = [_netdev(entry, sysfs, over) for entry in _ip("addr", "show")]
    devices = {device: _device(sysfs, device) for netdev in netdevs for device in netdev["devices"]}
    default = next(iter(_ip("route", "show", "default")), {})
    source = default.get("prefsrc") or next(
        (each["address"] for dev in netdevs if dev["name"] == default.get("dev") for each in dev["addresses"]), ""
    )
    return {
        "netdevs": netdevs,
        "devices": devices,
        "default": {"netdev": default.get("dev", ""), "source": source},
        "resolved": {name: _resolve(name) for name in names},
    }


def routes(addresses: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the kernel's route to every address: `netdev`, `source` and `gateway`, or `error`."""
    result = {}
    for address in addresses:
        done = _run("ip", "-j", "route", "get", address)
        if done.returncode != 0:
            result[address] = {"error": done.stderr.strip().removeprefix("RTNETLINK answers: ") or "ip said nothing"}
            continue
        found = json.loads(done.stdout)[0]
        result[address] = {
            "netdev": found.get("dev", ""),
            "source": found.get("prefsrc", ""),
            "gateway": found.get("gateway", ""),
        }
    return result


def ping_all(wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Send the pings `wanted` at once and return each with `answered`.

    One is tried twice: the first may only have asked for the neighbour's hardware address. Raises MissingTool.
    """
    if not wanted:
        return []
    with concurrent.futures.ThreadPoolExecutor(_PINGS_AT_ONCE) as pool:
        return list(pool.map(_ping, wanted))


def _ping(wanted: Mapping[str, Any]) -> dict[str, Any]:
    # Bound to the netdev, not to an address: with two ports in one subnet the kernel would choose the port.
    done = _run(
        *("ping", "-n", "-q", "-c", "2", "-i", "0.2", "-W", str(_PING_WAIT_S), "-M", "do"),
        *("-s", str(wanted["size"]), "-I", wanted["netdev"], wanted["address"]),
    )
    received = re.search(r"(\d+) received", done.stdout)
    return {**wanted, "answered": bool(received and int(received[1]))}


def _devices_over(sysfs: str) -> dict[str, list[str]]:
    """Return the RDMA devices by the netdev that their port names as its own: that of its first GID.

    A device of its own card is found below the card; one in software, Soft-RoCE or another, has no card.
    """
    found: dict[str, list[str]] = {}
    place = os.path.join(sysfs, "class", "infiniband")
    for device in _entries(place):
        netdev = _read(os.path.join(place, device, "ports", _PORT, "gid_attrs", "ndevs", "0"))
        if netdev:
            found.setdefault(netdev, []).append(device)
    return found


def _netdev(entry: Mapping[str, Any], sysfs: str, over: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    folder = os.path.join(sysfs, "class", "net", entry["ifname"], "device", "infiniband")
    return {
        "name": entry["ifname"],
        "up": entry.get("operstate") == "UP" and "LOWER_UP" in entry.get("flags", ()),
        "mtu": int(entry.get("mtu", 0)),
        "addresses": [
            {"address": each["local"], "prefix": each["prefixlen"]}
            for each in entry.get("addr_info", ())
            if each.get("family") == "inet" and each.get("scope") != "host"
        ],
        "devices": sorted(_entries(folder) or over.get(entry["ifname"], ())),
    }


def _device(sysfs: str, device: str) -> dict[str, Any]:
    place = os.path.join(sysfs, "class", "infiniband", device)
    port = os.path.join(place, "ports", _PORT)
    gids = []
    for index in sorted(map(int, filter(str.isdigit, _entries(os.path.join(port, "gids"))))):
        gid = _read(os.path.join(port, "gids", str(index)))
        kind = _read(os.path.join(port, "gid_attrs", "types", str(index)))
        if gid and gid != _ZERO_GID:
            gids.append({"index": index, "gid": gid, "type": kind})
    # The state reads as "4: ACTIVE".
    state = _read(os.path.join(port, "state")).rpartition(":")[2].strip()
    return {"state": state or "unknown", "firmware": _read(os.path.join(place, "fw_ver")), "gids": gids}


def _resolve(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> str:
    # Reading the type of an empty GID entry is an error of the kernel's, not of ours.
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read().strip()
    return ""


def _ip(*arguments: str) -> list[dict[str, Any]]:
    done = _run("ip", "-j", *arguments)
    return json.loads(done.stdout or "[]") if done.returncode == 0 else []


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if path is None:
        package = {"ip": "iproute2", "ping": "iputils-ping"}[program]
        raise MissingTool(
            f"there is no program {program} on this host, and the link is found with it: install {package}"
        )
    return subprocess.run(
        [path, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_LIMIT_S,
        check=False,
    )
