# SPDX-License-Identifier: Apache-2.0
"""The board on which the instances of await_live tell each other what they see."""

from __future__ import annotations

import threading
from pathlib import Path

from ansible_collections.sparkpair.serving.plugins.module_utils._board import Board
from ansible_collections.sparkpair.serving.plugins.module_utils._live import Sighting


def test_who_waits_learns_at_once_what_another_instance_publishes(tmp_path: Path):
    own, other = Board(str(tmp_path)), Board(str(tmp_path))
    own.publish(Sighting(1, "worker"))
    asked = threading.Event()

    def both(seen: list[Sighting]) -> bool:
        asked.set()
        return len(seen) == 2

    def publish() -> None:
        asked.wait()
        other.publish(Sighting(0, "head", ready=True))

    late = threading.Thread(target=publish)
    late.start()
    seen = own.wait(both, timeout_s=60)
    late.join()
    assert [(one.rank, one.host, one.ready) for one in seen] == [(0, "head", True), (1, "worker", False)]


def test_who_waits_in_vain_gets_what_there_is(tmp_path: Path):
    board = Board(str(tmp_path))
    board.publish(Sighting(1, "worker", trouble="gone"))
    assert [one.trouble for one in board.wait(lambda seen: len(seen) == 2, timeout_s=0)] == ["gone"]
