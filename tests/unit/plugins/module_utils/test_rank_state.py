# SPDX-License-Identifier: Apache-2.0
"""A rank's state file is believed only as far as it can be checked."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_state import RankError, explain, observe
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import (
    boot_id,
    directory_id,
    start_ticks,
)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "rank0"
    path.mkdir()
    return path


def write_status(directory: Path, pid: int, **changes: Any) -> None:
    one = {"pid": pid, "start_ticks": start_ticks(pid)}
    doc = {
        "version": 1,
        "name": "rank0",
        "directory_id": directory_id(str(directory)),
        "boot_id": boot_id(),
        "spec_hash": "abc",
        "supervisor": {"pid": 2**22 - 1, "start_ticks": 1},
        "rank": one,
        "log": str(directory / "rank.log"),
        "log_offset": 0,
        "started_at": "2026-11-29T21:30:00Z",
        "ended_at": None,
        "exit_code": None,
        "exit_signal": None,
        **changes,
    }
    (directory / "status.json").write_text(json.dumps(doc))


def test_a_directory_without_a_state_file_knows_of_no_rank(directory: Path):
    assert not observe(str(directory)).exists
    assert observe(str(directory / "missing")).in_words() == "absent"


def test_the_rank_that_was_started_is_running(directory: Path, process):
    write_status(directory, process.pid)
    state = observe(str(directory))
    assert (state.running, state.in_words()) == (True, "running")


def test_a_reused_process_id_is_not_the_rank(directory: Path, process):
    write_status(directory, process.pid, rank={"pid": process.pid, "start_ticks": 1})
    state = observe(str(directory))
    assert not state.running
    assert "supervisor was killed" in state.in_words()


def test_a_process_of_another_boot_is_not_the_rank(directory: Path, process):
    write_status(directory, process.pid, boot_id="another")
    state = observe(str(directory))
    assert not state.running
    assert "restarted" in state.in_words()


def test_a_copied_directory_does_not_own_the_rank(directory: Path, process):
    write_status(directory, process.pid)
    copy = directory.parent / "copy"
    shutil.copytree(directory, copy)
    state = observe(str(copy))
    assert not state.running
    assert state.supervisor is None
    assert "copy" in state.in_words()


def test_a_moved_directory_still_owns_the_rank(directory: Path, process):
    write_status(directory, process.pid)
    directory.rename(directory.parent / "moved")
    assert observe(str(directory.parent / "moved")).running


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_code": 7}, "ended with exit code 7"),
        ({"exit_signal": 9}, "ended by signal 9 (SIGKILL)"),
        ({"exit_signal": 64 + 63}, "ended by signal 127"),
    ],
)
def test_the_end_is_told_in_words(directory: Path, process, changes, words):
    write_status(directory, process.pid, ended_at="2026-11-29T21:31:00Z", **changes)
    assert observe(str(directory)).in_words() == words


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", '{"rank": {"pid": "x"}}', '{"version": 1}', "\x00\x00\x00"],
    ids=["empty", "cut", "null", "list", "no number", "no keys", "zeros"],
)
def test_a_damaged_state_file_is_an_error_with_its_path_and_the_remedy(directory: Path, text):
    path = directory / "status.json"
    path.write_text(text)
    with pytest.raises(RankError, match="No process runs for this rank: remove the file") as raised:
        observe(str(directory))
    assert str(path) in str(raised.value)


def test_a_damaged_state_file_names_the_process_that_still_runs(directory: Path):
    (directory / "status.json").write_text("{")
    lock = directory / "lock"
    with lock.open("w") as file, subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()]) as process:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RankError, match=f"Process {process.pid} still runs for this rank"):
            observe(str(directory))
        process.kill()


def test_a_lost_state_file_does_not_hide_a_running_rank(directory: Path):
    with (directory / "lock").open("w") as file, subprocess.Popen(["sleep", "60"], pass_fds=[file.fileno()]) as process:
        with pytest.raises(RankError, match=f"process {process.pid} holds"):
            observe(str(directory))
        process.kill()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "has no permission for /x/y. Give that user the directory"),
        (errno.ENOSPC, "the disk that holds /x/y is full"),
        (errno.EROFS, "mounted read-only"),
        (errno.ENOTDIR, "is a file where a directory is needed"),
        (errno.EIO, "/x/y: Input/output error."),
    ],
    ids=["permission", "full", "read-only", "file", "other"],
)
def test_a_refusal_of_the_system_names_path_and_remedy(number, words):
    told = str(explain(OSError(number, os.strerror(number), "/x/y"), "start rank0", "/x"))
    assert told.startswith("Could not start rank0: ")
    assert words in told
