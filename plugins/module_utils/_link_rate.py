# SPDX-License-Identifier: Apache-2.0
"""How much the link between two hosts carries, measured over all its rails at once for a moment, and what that means.

One host answers, the other asks: it sends, then has the other send, over several TCP connections a rail, each bound to
its rail. What is sent is one small buffer over and over, straight from the page cache, and what arrives is thrown away
by the kernel, so that a measurement takes neither memory nor much of a processor. TCP reaches less than RDMA on the
same link: what is judged is only whether the rate is far under what the ports say. Private to the collection, may
change at any time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ansible_collections.sparkpair.serving.plugins.module_utils._findings import WARNING, Finding

STREAMS = 4
BUFFER = 1 << 20
# Before it is counted, so that what fills the sockets' own buffers is not.
WARM_UP_S = 0.3
COUNTED_S = 1.0
# What all sockets' buffers could take at the most, many times over.
LEAST_AVAILABLE = 1 << 30
# Of what a port says, less than this is no matter of TCP's own costs any more.
SHARE = 0.25
_SEND, _RECEIVE = b"s", b"r"
_CONNECT_S = 10.0
_STALLED_S = 5


class NotMeasured(Exception):
    """Why there is no rate."""


def answer(addresses: Sequence[str], port: int, askers: int, wait_s: float = _CONNECT_S) -> int:
    """Answer so many askers at the addresses, and return how many came.

    Ends when the last one is done, or when nobody has come or been there for `wait_s` seconds. Raises OSError.
    """
    with contextlib.ExitStack() as held:
        doors = [held.enter_context(socket.create_server((address, port), backlog=64)) for address in addresses]
        closing = threading.Event()
        busy: list[threading.Thread] = []
        hosts: set[str] = set()

        def serve(door: socket.socket) -> None:
            door.settimeout(0.2)
            while not closing.is_set():
                with contextlib.suppress(socket.timeout):
                    connection, (host, _) = door.accept()
                    thread = threading.Thread(target=_answered, args=(connection, hosts, host), daemon=True)
                    busy.append(thread)
                    thread.start()

        for door in doors:
            threading.Thread(target=serve, args=(door,), daemon=True).start()
        last = time.monotonic()
        # Two connections for a rail and stream: one to receive on, one to send on.
        while len(busy) < askers * len(addresses) * STREAMS * 2 or any(thread.is_alive() for thread in busy):
            if any(thread.is_alive() for thread in list(busy)):
                last = time.monotonic()
            if time.monotonic() - last > wait_s:
                break
            closing.wait(0.05)
        closing.set()
        return len(hosts)


def _answered(connection: socket.socket, hosts: set[str], host: str) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(_STALLED_S)
        what = connection.recv(1)
        hosts.add(host)
        counted = [0]
        if what == _SEND:
            _receive(connection, counted, lambda: False)
        elif what == _RECEIVE:
            _send(connection, counted, lambda: False)


def ask(rails: Sequence[Mapping[str, str]], port: int, available: int) -> dict[str, float]:
    """Return the `sent` and `received` rate over all rails at once, in Gbit/s.

    A rail has `netdev`, `source` (this host's address on it) and `address` (the other's); `available` is the memory
    that could be given out, in bytes. Raises NotMeasured.
    """
    if available < LEAST_AVAILABLE:
        raise NotMeasured(f"only {available >> 20} MiB of memory are available")
    return {"sent": _rate(rails, port, _SEND, _send), "received": _rate(rails, port, _RECEIVE, _receive)}


def _rate(rails: Sequence[Mapping[str, str]], port: int, word: bytes, move: Callable[..., None]) -> float:
    """Return what is moved in one direction, in Gbit/s. Raises NotMeasured."""
    counted = [0] * (len(rails) * STREAMS)
    over = threading.Event()
    with contextlib.ExitStack() as held:
        ends = [held.enter_context(_connected(rail, port, word)) for rail in rails for _ in range(STREAMS)]
        threads = [
            threading.Thread(target=_moved, args=(move, end, counted, index, over), daemon=True)
            for index, end in enumerate(ends)
        ]
        for thread in threads:
            thread.start()
        over.wait(WARM_UP_S)
        before, begun = sum(counted), time.monotonic()
        over.wait(COUNTED_S)
        moved, seconds = sum(counted) - before, time.monotonic() - begun
        over.set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    return round(moved * 8 / seconds / 1e9, 2)


def _connected(rail: Mapping[str, str], port: int, word: bytes) -> socket.socket:
    """Return a connection over a rail; the other host may not be there yet. Raises NotMeasured."""
    deadline = time.monotonic() + _CONNECT_S
    while True:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # An account that may not do that has the address, which leads the same way unless two rails share a subnet.
            with contextlib.suppress(PermissionError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, rail["netdev"].encode() + b"\0")
            connection.bind((rail["source"], 0))
            connection.settimeout(_CONNECT_S)
            connection.connect((rail["address"], port))
            connection.sendall(word)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline:
                way = f"{rail['netdev']} to {rail['address']} port {port}"
                raise NotMeasured(f"there is no connection over {way}: {error.strerror or error}") from error
            time.sleep(0.1)


def _moved(
    move: Callable[..., None], end: socket.socket, counted: list[int], index: int, over: threading.Event
) -> None:
    with contextlib.suppress(OSError):
        move(end, counted, over.is_set, index)


def _send(end: socket.socket, counted: list[int], over: Callable[[], bool], index: int = 0) -> None:
    """Send until told or the other has closed."""
    end.settimeout(None)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _STALLED_S, 0))
    with contextlib.closing(_Buffer()) as buffer:
        while not over():
            counted[index] += os.sendfile(end.fileno(), buffer.descriptor, 0, BUFFER)


def _receive(end: socket.socket, counted: list[int], over: Callable[[], bool], index: int = 0) -> None:
    """Receive until told or the other has closed; nothing is copied out of the kernel."""
    end.settimeout(None)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _STALLED_S, 0))
    buffer = bytearray(BUFFER)
    while not over() and (count := end.recv_into(buffer, BUFFER, socket.MSG_TRUNC)):
        counted[index] += count


class _Buffer:
    """One buffer of zeros in the page cache."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("sparkpair-link-rate")
        os.write(self.descriptor, bytes(BUFFER))

    def close(self) -> None:
        os.close(self.descriptor)


def says_gbit(sysfs: str, netdevs: Sequence[str]) -> float:
    """Return what the fastest of the ports says that it carries, in Gbit/s, 0 where none says anything.

    The fastest and not the sum: the twins of a Spark are two PCIe links to one port.
    """
    found = [0.0]
    for netdev in netdevs:
        with (
            contextlib.suppress(OSError, ValueError),
            open(os.path.join(sysfs, "class", "net", netdev, "speed")) as file,
        ):
            found.append(float(file.read()) / 1000)
    return max(found)


def judge(host: str, other: str, rates: Mapping[str, float], says: float, floor: float) -> list[Finding]:
    """Return a warning when either direction is under `floor` Gbit/s, or without one far under what the ports say."""
    wanted = floor or says * SHARE
    slower = min(rates["sent"], rates["received"])
    if slower >= wanted:
        return []
    why = "sparkpair_link_floor_gbit" if floor else f"a quarter of the {says:g} Gbit/s that its ports say"
    return [
        Finding(
            id="link_rate",
            severity=WARNING,
            host=host,
            found=f"the link carries {rates['sent']:g} Gbit/s to {other} and {rates['received']:g} from it",
            wanted=f"at least {wanted:g}, {why}",
            remedy="see that the cable's own ports are used and not the LAN's, that both twins are addressed, that the "
            "MTU is 9000 at both ends and in a switch between them, and that nothing else uses the link; the ranks "
            "start all the same",
        )
    ]
