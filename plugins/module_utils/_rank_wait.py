# SPDX-License-Identifier: Apache-2.0
"""Waiting for something to happen to a rank: its end, its server's first answer, something new in its log.

The end and the answer are events that wake the wait. For a growing file there is no event in the standard
library, so the log's size is looked at five times a second, and only when somebody asked for the log.
Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Collection

from ansible_collections.sparkpair.serving.plugins.module_utils._anchors import parse_anchors
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import ProcessHandle
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_log import read_lines
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import RankState
from ansible_collections.sparkpair.serving.plugins.module_utils._ready import ReadyWatch

_LOOK_S = 0.2


def wait_for(
    state: RankState, events: Collection[str], ready_url: str | None, timeout_s: float, key: str | None = None
) -> None:
    """Return when one of `events` has happened to a running rank, or after `timeout_s` seconds.

    The events are `exit`, `ready` (needs `ready_url`, asked with `key`), `log` (a new line) and `anchor` (a new line
    that means something, see `parse_anchors`).
    """
    if not state.running or state.rank is None:
        return
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as held:
        poller = select.poll()
        look = bool({"log", "anchor"} & set(events))
        handle = ProcessHandle.of(state.rank)
        if handle is None:
            return
        held.enter_context(handle)
        if "exit" in events:
            if handle.descriptor is not None:
                poller.register(handle.descriptor, select.POLLIN)
            else:
                look = True
        if "ready" in events and ready_url:
            poller.register(held.enter_context(ReadyWatch(ready_url, key)).descriptor, select.POLLIN)
        size = _size(state.log)
        anchors = parse_anchors(read_lines(state.log, state.log_offset)) if "anchor" in events else None
        while (left := deadline - time.monotonic()) > 0:
            if poller.poll(1000 * (min(left, _LOOK_S) if look else left)):
                return
            if "exit" in events and handle.descriptor is None and not handle.identity.runs():
                return
            if look and _size(state.log) != size:
                size = _size(state.log)
                if "log" in events:
                    return
                if parse_anchors(read_lines(state.log, state.log_offset)) != anchors:
                    return


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
