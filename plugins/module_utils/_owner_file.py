# SPDX-License-Identifier: Apache-2.0
"""A file with a secret on the head: read only when nobody but its owner can.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import os
import stat


class OwnerFileError(Exception):
    """The file cannot be used. The text says why and what to do, and never quotes the file."""


def read(path: str, what: str, most_bytes: int) -> bytes:
    """Return the first `most_bytes` of a file, called `what` in messages. Raises OwnerFileError.

    It has to be a regular file of mode 0600 or less; a pipe that nobody writes to is not waited for.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise OwnerFileError(f"the {what} file {path} is no regular file")
            if mode & 0o077:
                raise OwnerFileError(
                    f"the {what} file {path} has mode {stat.S_IMODE(mode):04o}, open to others: run `chmod 600 {path}`"
                )
            return file.read(most_bytes)
    except OSError as exc:
        raise OwnerFileError(f"the {what} file {path} cannot be read: {exc.strerror}") from exc
