# SPDX-License-Identifier: Apache-2.0
"""Reading the log of one run of a rank: its last lines, and the parts where the engine's anchors can be.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

# A rank says what it estimates and serves within its first lines and why it ends within its last; what it
# writes in between can be long.
_HEAD_BYTES = 256 * 1024
_TAIL_BYTES = 256 * 1024
_LINE_LENGTH = 500
# The engines' own words, and the last line of a Python program that was not prepared for its error.
_ERROR = re.compile(r"(?:error|fatal|[A-Za-z_.]*(?:Error|Exception)): ")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def read_lines(log: str, offset: int) -> list[str]:
    """Return the first and the last lines of a run that begins at byte `offset` of `log`, in order.

    What lies between the first and the last 256 KiB is left out. No file means no lines. Raises OSError.
    """
    try:
        with open(log, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            # A log shorter than where the run began was truncated by somebody: all of it is new.
            begin = offset if offset <= end else 0
            file.seek(begin)
            if end - begin <= _HEAD_BYTES + _TAIL_BYTES:
                return lines_of(file.read())
            head = file.read(_HEAD_BYTES)
            file.seek(end - _TAIL_BYTES)
            tail = file.read()
    except FileNotFoundError:
        return []
    # The cut goes through a line on either side.
    return lines_of(head.rpartition(b"\n")[0]) + lines_of(tail.partition(b"\n")[2])


def last_lines(log: str, offset: int, count: int) -> list[str]:
    """Return the last `count` lines of a run. Raises OSError."""
    return read_lines(log, offset)[-count:] if count > 0 else []


def last_words(lines: Sequence[str]) -> str:
    """Return the line that says why a run has ended: the last one that names an error, else the last one."""
    named = [line for line in lines if _ERROR.match(line)]
    return (named or list(lines) or ["it said nothing"])[-1]


def lines_of(text: bytes) -> list[str]:
    """Return lines fit for a terminal: of a line that was drawn over, what was drawn last; very long ones cut."""
    lines = []
    for line in text.decode("utf-8", errors="replace").split("\n"):
        shown = _CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip()
        if shown:
            lines.append(shown if len(shown) <= _LINE_LENGTH else shown[:_LINE_LENGTH] + " ...")
    return lines
