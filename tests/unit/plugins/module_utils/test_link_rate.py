# SPDX-License-Identifier: Apache-2.0
"""What a measured rate of the link means, and when none is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _link_rate

GIB = 1 << 30


@pytest.mark.parametrize(
    ("sent", "received", "says", "floor", "wanted"),
    [
        # NVIDIA's playbook over the bootstrap interface: 3 GB/s where the port says 25.
        (24, 24, 200, 0, "at least 50, a quarter of the 200 Gbit/s that its ports say"),
        (92, 24, 200, 0, "at least 50"),
        (92, 91, 200, 0, ""),
        (92, 91, 200, 95, "at least 95, sparkpair_link_floor_gbit"),
        (24, 24, 200, 20, ""),
        # Nothing is known of the port, so nothing can be said.
        (0.9, 0.9, 0, 0, ""),
    ],
)
def test_n07_the_slower_way_is_judged_by_the_setting_or_by_what_the_ports_say(
    sent: float, received: float, says: float, floor: float, wanted: str
) -> None:
    found = _link_rate.judge("worker", "head", {"sent": sent, "received": received}, says, floor)
    assert [wanted in one.wanted and one.severity == "warning" for one in found] == ([True] if wanted else [])


def test_n07_nothing_is_sent_where_memory_is_short() -> None:
    # Nobody listens: it would wait for a connection if it tried.
    rail = {"netdev": "lo", "source": "127.0.0.1", "address": "127.0.0.1"}
    with pytest.raises(_link_rate.NotMeasured, match="only 512 MiB of memory are available"):
        _link_rate.ask([rail], 9, GIB // 2)


def test_twins_of_one_port_do_not_promise_twice_what_it_has(tmp_path: Path) -> None:
    for netdev, text in (("a", "200000"), ("b", "200000"), ("c", "-1"), ("d", "nothing")):
        (tmp_path / "class" / "net" / netdev).mkdir(parents=True)
        (tmp_path / "class" / "net" / netdev / "speed").write_text(f"{text}\n")
    assert _link_rate.says_gbit(str(tmp_path), ["a", "b", "c", "d", "none"]) == 200
    assert _link_rate.says_gbit(str(tmp_path), ["c"]) == 0
