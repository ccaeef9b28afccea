# SPDX-License-Identifier: Apache-2.0
"""A change of a configuration file that takes itself back unless somebody says in time that it may stay.

A process of its own waits for that word, so it does not matter whether who made the change can still reach the host.
Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_WORD = b"keep"

# Waits at the pipe; without the word in time the file is as it was, and the command applies it. The text is a program
# of its own, because the module that starts it is gone by then.
_GUARD = """
import os, select, subprocess, sys
pipe, seconds, path, before, *command = sys.argv[1:]
end = os.open(pipe, os.O_RDWR)
heard = select.select([end], [], [], float(seconds))[0]
os.unlink(pipe)
if not heard:
    os.replace(before, path) if os.path.exists(before) else os.unlink(path)
    subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
elif os.path.exists(before):
    os.unlink(before)
"""


class TakenBack(Exception):
    """The change is no longer there: the word came too late."""


def change(path: str, text: str, directory: str, seconds: float, command: Sequence[str]) -> str:
    """Write `text` to `path` (0600), guarded for `seconds`, run `command`, and return what it said if it failed.

    `directory` holds the pipe and the file as it was. Raises OSError.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    pipe, before = os.path.join(directory, "pipe"), os.path.join(directory, "before")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(before)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            write(before, file.read())
    with contextlib.suppress(FileNotFoundError):
        os.unlink(pipe)
    os.mkfifo(pipe, 0o600)
    subprocess.Popen(
        [sys.executable, "-c", _GUARD, pipe, str(seconds), path, before, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    write(path, text)
    return apply(command)


def keep(directory: str) -> None:
    """Say that the change may stay. Raises TakenBack when it is too late."""
    try:
        end = os.open(os.path.join(directory, "pipe"), os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):
            raise TakenBack from None
        raise
    os.write(end, _WORD)
    os.close(end)


def take_back(path: str, directory: str, command: Sequence[str]) -> bool:
    """Take the change back now, if it is still guarded; return whether it was."""
    before = os.path.join(directory, "before")
    text = None
    if os.path.exists(before):
        with open(before, encoding="utf-8") as file:
            text = file.read()
    try:
        keep(directory)
    except TakenBack:
        return False
    if text is None:
        os.unlink(path)
    else:
        write(path, text)
    apply(command)
    return True


def apply(command: Sequence[str]) -> str:
    """Run the command that makes the file count; what it said when it failed, else nothing."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"there is no program {command[0]} on this host"
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"


def write(path: str, text: str) -> None:
    """Write a file for its owner alone, whole or not at all."""
    handle, made = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
