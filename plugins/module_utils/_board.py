# SPDX-License-Identifier: Apache-2.0
"""Where the instances of await_live, one process a host, see what the others saw: a directory of small files.

Every rank's sighting is a file that only its own instance writes, as a whole. Runs on the controller.
Private to the collection, may change at any time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable

from ansible_collections.sparkpair.serving.plugins.module_utils._live import Sighting
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import write_json

# Files have no events across processes in the standard library. The files are few, small and local, so
# looking ten times a second costs nothing, and a verdict reaches every host within that time.
_LOOK_S = 0.1


class Board:
    """The sightings of one task of one run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        os.makedirs(directory, mode=0o700, exist_ok=True)

    def publish(self, sighting: Sighting) -> None:
        """Replace the sighting of this rank."""
        write_json(os.path.join(self._directory, f"{sighting.rank}.json"), dataclasses.asdict(sighting))

    def read(self) -> list[Sighting]:
        """Return the last sighting of every rank that was looked at, by rank."""
        seen = []
        for entry in os.listdir(self._directory):
            if entry.endswith(".json"):
                with open(os.path.join(self._directory, entry), encoding="utf-8") as file:
                    seen.append(Sighting(**json.load(file)))
        return sorted(seen, key=lambda one: one.rank)

    def wait(self, until: Callable[[list[Sighting]], bool], timeout_s: float) -> list[Sighting]:
        """Return what is seen as soon as `until` says so, or after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while not until(seen := self.read()) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return seen
