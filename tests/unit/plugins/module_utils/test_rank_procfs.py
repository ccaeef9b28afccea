# SPDX-License-Identifier: Apache-2.0
"""A process is told from a later one with the same id, and from one that has ended."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._procfs import (
    ProcessHandle,
    ProcessIdentity,
    group_rss_bytes,
    holders_of,
    mem_available_bytes,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import boot_id, start_ticks


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, start_ticks(pid), boot_id())


def test_a_running_process_is_known_by_its_id_start_and_boot(sleeper):
    assert identity(sleeper.pid).runs()


@pytest.mark.parametrize(
    "change", [{"start_ticks": 1}, {"boot_id": "another"}, {"pid": os.getpid()}], ids=["start", "boot", "id"]
)
def test_a_process_that_differs_in_any_of_them_is_another(sleeper, change):
    stranger = dataclasses.replace(identity(sleeper.pid), **change)
    assert not stranger.runs()
    assert ProcessHandle.of(stranger) is None


def test_a_process_that_waits_to_be_reaped_does_not_run(sleeper):
    known = identity(sleeper.pid)
    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not known.runs()


@pytest.mark.parametrize("with_descriptor", [True, False], ids=["pidfd", "old kernel"])
def test_waiting_ends_with_the_process_and_not_before(sleeper, with_descriptor, monkeypatch):
    if not with_descriptor:
        monkeypatch.delattr(os, "pidfd_open")
    handle = ProcessHandle.of(identity(sleeper.pid))
    assert handle is not None
    with handle:
        assert (handle.descriptor is not None) == with_descriptor
        assert not handle.wait(0.05)
        handle.send(signal.SIGTERM)
        begun = time.monotonic()
        assert handle.wait(10)
        assert time.monotonic() - begun < 5
        handle.send(signal.SIGTERM)


def test_a_groups_memory_counts_the_processes_it_started(tmp_path: Path):
    source = (
        "import subprocess, sys; block = bytearray(40 << 20)\n"
        "child = subprocess.Popen([sys.executable, '-c', "
        "'import os; block = bytearray(40 << 20); print(os.getpid(), flush=True); input()'], stdin=subprocess.PIPE)\n"
        "input()"
    )
    command = [sys.executable, "-c", source]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = ProcessHandle.of(identity(int(parent.stdout.readline())))
        assert child is not None
        used = group_rss_bytes(parent.pid)
        os.killpg(parent.pid, signal.SIGKILL)
    # The child has lost its parent: nobody here waits for its end but this.
    with child:
        assert child.wait(10)
    assert 80 << 20 < used < 200 << 20
    assert group_rss_bytes(parent.pid) == 0


def test_available_memory_is_some_of_the_machines():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < mem_available_bytes() <= total


def test_who_has_a_file_open_is_found(tmp_path: Path):
    path = tmp_path / "lock"
    path.touch()
    assert holders_of(str(path)) == []
    with path.open() as file, subprocess.Popen(["sleep", "60"], stdin=file) as process:
        assert holders_of(str(path)) == [process.pid]
        process.kill()
