# SPDX-License-Identifier: Apache-2.0
"""The overhead benchmark runs and every token it counts arrives; its figures are for people, not for this test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench" / "api_overhead.py"


def test_benchmark_measures_every_load_beside_the_sources_own_loop(tmp_path: Path) -> None:
    figures, table = tmp_path / "figures.json", tmp_path / "table.md"
    arguments = ["--seconds", "0.3", "--rounds", "1", "--json", str(figures), "--markdown", str(table)]
    done = subprocess.run([sys.executable, str(BENCH), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    measured = json.loads(figures.read_text())
    assert [(load["streams"], load["pace"]) for load in measured["loads"]] == [(1, 100), (8, 100), (1, 0), (8, 0)]
    for load in measured["loads"]:
        assert load["ratio"] > 0
        for side in ("own", "bare", "http"):
            assert load[side]["tokens_per_s"] > 0
            assert load[side]["cpu_us"] > 0
        difference = load["http"]["cpu_us"] - load["own"]["cpu_us"]
        assert load["cpu_us_per_token"] == pytest.approx(difference)
    assert measured["first_token"]["http_ms"] > measured["first_token"]["own_ms"] > 0
    assert table.read_text() == done.stdout
    assert done.stdout.count("\n| ") == 5
