# SPDX-License-Identifier: Apache-2.0
"""Which Debian this machine has: what tests make with mmdebstrap is of the same."""

from __future__ import annotations

from pathlib import Path


def codename() -> str:
    """The name of the release, `stable` where the machine does not say."""
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip('"')
    return "stable"
