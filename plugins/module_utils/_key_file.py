# SPDX-License-Identifier: Apache-2.0
"""The file of API keys on the head, as the probes need it: one key out of it, and what is wrong with it.

The format is the engine's: one key a line as KEY or LABEL: KEY, `#` begins a comment, mode 0600. Private to the
collection, may change at any time.
"""

from __future__ import annotations

import os
import stat

_MOST_BYTES = 1 << 20


class KeyFileError(Exception):
    """The file cannot be used. The text says why and what to do, and never quotes the file."""


def first_key(path: str) -> str | None:
    """Return the first key of a file, None without a path. Raises KeyFileError."""
    if not path:
        return None
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise KeyFileError(f"the key file {path} is no regular file")
            if mode & 0o077:
                raise KeyFileError(
                    f"the key file {path} has mode {stat.S_IMODE(mode):04o}, open to others: run `chmod 600 {path}`"
                )
            lines = file.read(_MOST_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError as exc:
        raise KeyFileError(f"the key file {path} cannot be read: {exc.strerror}") from exc
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            return text.partition(":")[2].strip() if ":" in text else text
    raise KeyFileError(f"the key file {path} has no key: write one a line, as KEY or LABEL: KEY")


def problem_of(path: str) -> str:
    """Return what keeps a file from being used, empty when nothing does."""
    try:
        first_key(path)
    except KeyFileError as exc:
        return str(exc)
    return ""


def authorization(key: str | None) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}
