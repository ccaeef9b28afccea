# SPDX-License-Identifier: Apache-2.0
"""What a recorded start still lacks on this host: addresses, RDMA devices, files, a server, an image.

After a boot these come one after the other, and a rank that is started before them fails for no fault of its own.
Standard library only; private to the collection, may change at any time.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _image, _sockets
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker, DockerError

_REACH_LIMIT_S = 3.0


def missing(record: Mapping[str, Any], docker_host: str, sysfs: str = "/sys") -> list[str]:
    """Return what a record's start lacks on this host now, in words."""
    start = record["start"]
    needs = start["needs"]
    found = []
    if needs["address"] and not _sockets.is_local(needs["address"]):
        found.append(f"{needs['netdev'] or 'no port'} has not the address {needs['address']} yet")
    for device in needs["devices"]:
        # The first device is the link's own port; a further rail has an address of its own.
        address = needs["address"] if device == needs["devices"][0] else ""
        if gid_index(device, address, sysfs) is None:
            wanted = f"a RoCE v2 GID of {address or 'an IPv4 address'}"
            found.append(f"the RDMA device {device} is not ACTIVE with {wanted} yet")
    found += [f"{path} is not there" for path in needs["paths"] if not os.path.exists(path)]
    for host, port in needs["reach"]:
        try:
            socket.create_connection((host, port), timeout=_REACH_LIMIT_S).close()
        except OSError as error:
            found.append(f"the NFS server {host} cannot be reached ({error.strerror or error})")
    return found + (_image_missing(record, docker_host) if "container" in start else [])


def gid_index(device: str, address: str, sysfs: str = "/sys") -> int | None:
    """Return the index of a device's RoCE v2 GID for an IPv4 address, or for any when it is empty.

    None where the device is not there, not ACTIVE, or has no such GID.
    """
    port = os.path.join(sysfs, "class", "infiniband", device, "ports", "1")
    if not _read(os.path.join(port, "state")).endswith("ACTIVE"):
        return None
    try:
        indexes = sorted(map(int, filter(str.isdigit, os.listdir(os.path.join(port, "gids")))))
    except OSError:
        return None
    for index in indexes:
        kind = _read(os.path.join(port, "gid_attrs", "types", str(index)))
        text = _read(os.path.join(port, "gids", str(index)))
        mapped = ipaddress.IPv6Address(text).ipv4_mapped if text else None
        if "v2" in kind.lower() and mapped is not None and address in ("", str(mapped)):
            return index
    return None


def _image_missing(record: Mapping[str, Any], docker_host: str) -> list[str]:
    docker = Docker(docker_host)
    try:
        seen = _image.described(docker.inspect(record["kept"], kind="image"))
    except DockerError as error:
        return [str(error)]
    if not seen["exists"]:
        return [f"the image of the last good start is gone from Docker ({record['kept']}): run site.yml"]
    if seen["identity"] != record["identity"]:
        return [f"{record['kept']} is another image than the one of the last good start: run site.yml"]
    return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
