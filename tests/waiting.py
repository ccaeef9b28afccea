# SPDX-License-Identifier: Apache-2.0
"""Waiting for what the outside world does in its own time and tells nobody."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition of the outside world holds, and return its value."""
    deadline = time.monotonic() + 20
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
    return value
