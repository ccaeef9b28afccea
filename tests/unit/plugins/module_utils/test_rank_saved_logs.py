# SPDX-License-Identifier: Apache-2.0
"""Logs of ended ranks are kept, told apart and bounded."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._saved_logs import prune, save_log, saved_logs

SECOND = 1795995000.0  # 2026-11-29 23:30:00 UTC


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank.log"
    path.write_text("first\nlast\n")
    return path


def test_saves_of_one_second_do_not_collide_and_sort_by_age(tmp_path: Path, log: Path):
    saved = []
    for number in range(12):
        log.write_text(f"run {number}\n")
        saved.append(save_log(str(log), str(tmp_path / "logs"), "rank0", "# header", SECOND))
    assert [Path(path).name for path in saved[:3]] == [
        "20261129-233000-rank0.log.gz",
        "20261129-233000.1-rank0.log.gz",
        "20261129-233000.2-rank0.log.gz",
    ]
    assert saved_logs(str(tmp_path / "logs"), "rank0") == saved[::-1]
    for number, path in enumerate(saved):
        assert gzip.decompress(Path(path).read_bytes()).decode() == f"# header\nrun {number}\n"


def test_an_existing_file_is_never_written_over(tmp_path: Path, log: Path):
    taken = tmp_path / "20261129-233000-rank0.log.gz"
    taken.write_text("precious")
    save_log(str(log), str(tmp_path), "rank0", "#", SECOND)
    assert taken.read_text() == "precious"


def test_pruning_keeps_the_newest_of_the_rank_and_everything_of_others(tmp_path: Path, log: Path):
    directory = tmp_path / "logs"
    saved = [save_log(str(log), str(directory), "rank1", "#", SECOND + number) for number in range(5)]
    others = [save_log(str(log), str(directory), name, "#", SECOND - 99) for name in ("rank0", "rank10", "x-rank1")]
    stranger = directory / "notes-rank1.log.gz"
    stranger.write_text("mine")
    prune(str(directory), "rank1", 2)
    assert saved_logs(str(directory), "rank1") == [saved[4], saved[3]]
    assert all(Path(path).exists() for path in [*others, stranger])


def test_a_save_that_fails_leaves_the_log_and_nothing_else(tmp_path: Path, log: Path):
    log.unlink()
    log.mkdir()
    with pytest.raises(IsADirectoryError):
        save_log(str(log), str(tmp_path / "logs"), "rank0", "#", SECOND)
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_saved_log_is_its_owners(tmp_path: Path, log: Path):
    saved = Path(save_log(str(log), str(tmp_path / "logs"), "rank0", "#"))
    assert saved.stat().st_mode & 0o077 == 0


def test_no_directory_means_no_saved_logs(tmp_path: Path):
    assert saved_logs(str(tmp_path / "none"), "rank0") == []
