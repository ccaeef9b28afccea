# SPDX-License-Identifier: Apache-2.0
"""Runs Ansible's tasks, each in a fork of this process, which has imported what all of them import.

A task is a program on standard input. That it finds its imports done is all that is different from a Python of its own:
it has its caller's account, directory, environment and files, and what is not in `ansible.module_utils` comes out of
the archive that Ansible brings, as ever. Where a processor is emulated, importing is most of a task's time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pwd
import signal
import socket
import struct
import sys
import traceback
import types
from collections.abc import Iterator

PLACE = "/run/pair-python"
_MOST_BYTES = 1 << 17
_IMPORTED = (
    *("base64", "zipfile", "ssl", "urllib.request", "http.client", "concurrent.futures", "ipaddress", "fcntl"),
    *("dataclasses", "hashlib", "runpy", "selectors", "uuid", "yaml"),
    *("ansible.module_utils.basic", "ansible.module_utils._internal._ansiballz._loader"),
    *("ansible.module_utils.common.file", "ansible.module_utils.common.dict_transformations"),
)


class _Anywhere(list[str]):
    """The places of a package: one on the disk, and its directory in every archive that a task has brought."""

    def __init__(self, places: list[str], package: str) -> None:
        super().__init__(places)
        self._folder = package.replace(".", "/")

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield from (f"{entry}/{self._folder}" for entry in sys.path if entry.endswith(".zip"))


def main() -> None:
    """Import, and serve until ended."""
    for name in _IMPORTED:
        importlib.import_module(name)
    for name in ("ansible", "ansible.module_utils"):
        package = sys.modules[name]
        package.__path__ = _Anywhere(list(package.__path__), name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(PLACE)
    os.chmod(PLACE, 0o666)
    listener.listen(64)
    gc.collect()
    gc.freeze()
    while True:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(link)
        link.close()


def _answer(link: socket.socket) -> None:
    """Run a caller's task in a process of its own and tell its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, _, _ = socket.recv_fds(link, _MOST_BYTES, 3)
    task = os.fork()
    if task == 0:
        _become(link, data, files)
        os._exit(_run())
    for number in files:
        os.close(number)
    _, status = os.waitpid(task, 0)
    code = os.waitstatus_to_exitcode(status)
    # Whoever called may have left.
    with contextlib.suppress(OSError):
        link.send(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def _become(link: socket.socket, data: bytes, files: list[int]) -> None:
    """Take over the caller's account, directory, environment and files."""
    _, user, group = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    link.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    os.initgroups(pwd.getpwuid(user).pw_name, group)
    os.setgid(group)
    os.setuid(user)
    directory, *words = data.split(b"\0")
    os.environb.clear()
    os.environb.update(word.split(b"=", 1) for word in words)
    os.chdir(directory)


def _run() -> int:
    """Run the program on standard input as Python would; returns its exit code."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [""]
    code = 0
    try:
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec"), module.__dict__)  # noqa: S102 - as an interpreter does
    except SystemExit as ended:
        if isinstance(ended.code, int) or ended.code is None:
            code = ended.code or 0
        else:
            print(ended.code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code & 255


if __name__ == "__main__":
    main()
