# SPDX-License-Identifier: Apache-2.0
"""What the lines of a rank's log mean: the few that the deployment reads, as data.

Pure functions. Private to the collection, may change at any time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_ESTIMATE = re.compile(r"startup estimate ([\d.]+) GiB within ([\d.]+) GiB")
_ESTIMATED_WINDOW = re.compile(r"window (\d+) tokens, (\d+) requests? at once")
_FITTING_WINDOW = re.compile(r"largest fitting prompt-plus-reply window: (\d+) tokens")
_LOADING = re.compile(r"^loading\b")
_READY = re.compile(r"^rank (\d+) ready in ([\d.]+) s")
_SERVING = re.compile(r"^serving (\S+) at (https?://\S+)")
# NCCL names its transport once when it begins, and again for every channel.
_IB = re.compile(r"NET/IB\b|Using network IB\b")
_SOCKET = re.compile(r"NET/Socket\b|Using network Socket\b")
_ERROR = re.compile(r"^error: ")
_FATAL = re.compile(r"^fatal: ")


def parse_anchors(lines: Iterable[str]) -> dict[str, Any]:
    """Return what the lines of one run say; of what is said twice the last counts.

    Keys: `estimate_gib` and `budget_gib` (floats), `window_tokens` and `parallel` (the window that was
    planned, how many requests at once), `fitting_window_tokens` (the largest that fits, said when the
    planned one does not), `loading` (the last progress line), `ready_s` (seconds this rank took),
    `served_name` and `serving_url`, `transport` (`ib` or `socket` as NCCL chose; one channel over sockets
    decides, for it slows all of them): each None until it is said. `errors` and `fatals` are lists of lines.
    """
    found: dict[str, Any] = {
        "estimate_gib": None,
        "budget_gib": None,
        "window_tokens": None,
        "parallel": None,
        "fitting_window_tokens": None,
        "loading": None,
        "ready_s": None,
        "served_name": None,
        "serving_url": None,
        "transport": None,
        "errors": [],
        "fatals": [],
    }
    for line in lines:
        if match := _ESTIMATE.search(line):
            found.update(estimate_gib=float(match[1]), budget_gib=float(match[2]))
            if window := _ESTIMATED_WINDOW.search(line):
                found.update(window_tokens=int(window[1]), parallel=int(window[2]))
        elif match := _FITTING_WINDOW.search(line):
            found.update(fitting_window_tokens=int(match[1]))
        elif _LOADING.search(line):
            found.update(loading=line)
        elif match := _READY.search(line):
            found.update(ready_s=float(match[2]))
        elif match := _SERVING.search(line):
            found.update(served_name=match[1], serving_url=match[2])
        elif _SOCKET.search(line):
            found.update(transport="socket")
        elif _IB.search(line):
            found.update(transport=found["transport"] or "ib")
        elif _ERROR.search(line):
            found["errors"].append(line)
        elif _FATAL.search(line):
            found["fatals"].append(line)
    return found
