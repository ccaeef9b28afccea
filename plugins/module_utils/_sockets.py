# SPDX-License-Identifier: Apache-2.0
"""Who listens on which TCP port of this machine, read from /proc.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_LISTEN = "0A"


def parse_listening(text: str) -> list[dict[str, Any]]:
    """Return the listening sockets in the text of /proc/net/tcp or tcp6, each with `address`, `port`, `uid` of its
    owner and `inode`.
    """
    result = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            address, port = fields[1].split(":")
            inode, uid = int(fields[9]), int(fields[7])
            result.append({"address": _address(address), "port": int(port, 16), "uid": uid, "inode": inode})
    return result


def _address(text: str) -> str:
    """Return an address of /proc/net in its usual form; the kernel writes it as 32-bit words of its own
    byte order.
    """
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def listening(rank_leaders: Mapping[int, int], proc: str = "/proc") -> list[dict[str, Any]]:
    """Return every listening TCP socket with `address`, `port`, `pid`, `command` and `rank`.

    `rank_leaders` gives the process id of each running rank; `rank` is the one whose process, or a
    descendant of it, owns the socket, else None. `pid` is None when the owner belongs to another user and
    cannot be seen: a rank in a container is root's. Such a socket is the rank's whose process is the same user's and
    was told its port.
    """
    sockets = []
    for name in ("tcp", "tcp6"):
        # A kernel without IPv6 has no tcp6.
        with contextlib.suppress(FileNotFoundError), open(f"{proc}/net/{name}", encoding="ascii") as file:
            sockets += parse_listening(file.read())
    owners = _owners({entry["inode"] for entry in sockets}, proc)
    result = []
    for entry in sockets:
        pid = owners.get(entry.pop("inode"))
        uid = entry.pop("uid")
        if pid is None:
            told = (number for number, leader in rank_leaders.items() if _told(leader, uid, entry["port"], proc))
            rank = next(told, None)
        else:
            line = set(_lineage(pid, proc))
            rank = next((number for number, leader in rank_leaders.items() if leader in line), None)
        result.append({**entry, "pid": pid, "command": _command(pid, proc), "rank": rank})
    return sorted(result, key=lambda entry: (entry["port"], entry["address"]))


def in_the_way(sockets: Iterable[Mapping[str, Any]], address: str, port: int) -> Mapping[str, Any] | None:
    """Return the socket of somebody else that keeps a rank from listening on address:port, or None."""
    wildcards = ("0.0.0.0", "::")
    for entry in sockets:
        same = entry["address"] == address or entry["address"] in wildcards or address in wildcards
        if entry["port"] == port and entry["rank"] is None and same:
            return entry
    return None


def is_local(address: str) -> bool:
    """Say whether an IPv4 address belongs to this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _owners(inodes: Collection[int], proc: str) -> dict[int, int]:
    """Return the process of each socket inode, as far as this user may see it."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, int] = {}
    for entry in os.listdir(proc):
        if not entry.isdigit() or len(found) == len(wanted):
            continue
        # Processes end while one looks, and those of other users are closed.
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"{proc}/{entry}/fd"):
                with contextlib.suppress(OSError):
                    inode = wanted.get(os.readlink(f"{proc}/{entry}/fd/{descriptor}"))
                    if inode is not None:
                        found.setdefault(inode, int(entry))
    return found


def _lineage(pid: int, proc: str) -> list[int]:
    """Return a process id with those of its ancestors."""
    line = []
    while pid > 0 and pid not in line:
        line.append(pid)
        try:
            with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break
    return line


def _told(pid: int, uid: int, port: int, proc: str) -> bool:
    """Say whether a process is that user's and has the port on its command line."""
    try:
        owner = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return False
    return owner == uid and str(port) in _words(pid, proc)


def _command(pid: int | None, proc: str) -> str:
    """Return the command line of a process, cut to a readable length; empty when it cannot be seen."""
    return "" if pid is None else " ".join(_words(pid, proc)).strip()[:120]


def _words(pid: int, proc: str) -> list[str]:
    """Return the command line of a process, which everybody may see; empty when it has ended."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace").split("\0")
    except OSError:
        return []
