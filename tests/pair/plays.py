# SPDX-License-Identifier: Apache-2.0
"""The playbooks of the collection on the virtual machines, as a user runs them: with inventories/pair and settings."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.site import Run, play

# A start on emulated processors takes minutes.
LIMIT_S = 1200


def run(playbook: str, *arguments: str, inventory: str = "pair", **settings: Any) -> Run:
    """Run a playbook with settings that win over those of one of this repository's inventories."""
    ours = json.dumps({f"sparkpair_{name}": value for name, value in settings.items()})
    words = ["-i", f"inventories/{inventory}", f"playbooks/{playbook}.yml", "-e", ours, *arguments]
    return play(*words, limit_s=LIMIT_S)


def live(inventory: str = "pair", **settings: Any) -> Run:
    """Run the site playbook, which must end LIVE."""
    found = run("site", inventory=inventory, **settings)
    assert found.returncode == 0, found.output
    assert found.told("Say how the pair serves").startswith("LIVE")
    return found
