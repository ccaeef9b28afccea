# SPDX-License-Identifier: Apache-2.0
"""What is missing of the weights, what downloads them, where the token is, and what a job leaves for the next play."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _hub_cache,
    _hub_download,
    _hub_token,
    _nfs,
    _watched,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._job import Job, JobError

FILES = [
    {"path": "config.json", "size": 10, "blob": "a" * 40},
    {"path": "one.safetensors", "size": 5_000_000_000, "blob": "b" * 64},
    {"path": "two.safetensors", "size": 7_000_000_000, "blob": "c" * 64},
]


def test_s04_only_what_no_blob_holds_is_missing() -> None:
    """A new revision of mostly the same files needs room for the others alone."""
    assert _hub_cache.missing_bytes(FILES, {}) == 12_000_000_010
    assert _hub_cache.missing_bytes(FILES, {one["blob"]: one["size"] for one in FILES}) == 0
    # A blob of another size is no such blob; one that two files share is needed once.
    shared = [*FILES, {"path": "again.safetensors", "size": 7_000_000_000, "blob": "c" * 64}]
    assert _hub_cache.missing_bytes(shared, {"b" * 64: 5_000_000_000, "c" * 64: 1}) == 7_000_000_010


def test_s04_a_download_asks_for_room_for_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=12_000_000_000))
    _hub_download.room(str(tmp_path / "not-yet" / "there"), 0)
    _hub_download.room(str(tmp_path), 6_000_000_000)
    with pytest.raises(JobError, match=r"has 12\.0 GB free, and 8\.0 GB are missing, with a margin of 5\.0 GB"):
        _hub_download.room(str(tmp_path / "not-yet" / "there"), 8_000_000_000)


def only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose programs are those of one directory, and whose Python has no library of the Hub."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("HOME", str(path))


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_what_was_set_downloads_before_anything_that_is_found() -> None:
    assert _hub_download.program(["/opt/venv/bin/python", "-I"], ["docker"], "", "/c", (1, 1)) == [
        "/opt/venv/bin/python",
        "-I",
    ]


def test_the_python_that_runs_the_module_downloads_when_it_has_the_library() -> None:
    assert _hub_download.program([], ["docker"], "", "/c", (1, 1)) == [sys.executable]


def test_else_the_python_behind_the_program_hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(tmp_path, monkeypatch)
    (tmp_path / ".local" / "bin").mkdir(parents=True)
    program(tmp_path / ".local" / "bin" / "hf", f"#!{sys.executable}\n")
    assert _hub_download.program([], ["docker"], "", "/c", (1, 1)) == [sys.executable]


def test_s06_else_the_image_as_the_owner_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(tmp_path, monkeypatch)
    program(tmp_path / "docker", "#!/bin/sh\nexit 0\n")
    command = _hub_download.program([], ["docker", "-H", "unix:///d"], "engine:1", "/home/spark/hf", (1000, 1001))
    assert command[:4] == ["docker", "-H", "unix:///d", "run"]
    assert command[command.index("--user") + 1] == "1000:1001"
    assert command[command.index("--volume") + 1] == "/home/spark/hf:/hf"
    assert command[-3:] == ["--entrypoint", "python3", "engine:1"]


def test_s07_s08_without_any_of_them_it_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(tmp_path, monkeypatch)
    program(tmp_path / "docker", "#!/bin/sh\nexit 1\n")
    with pytest.raises(JobError) as caught:
        _hub_download.program([], ["docker"], "engine:1", "/c", (1, 1))
    for words in (f"{sys.executable} has no huggingface_hub", "no program hf", "no image engine:1", "hub_command"):
        assert words in str(caught.value)


def test_a_token_is_the_file_that_was_set_else_the_environment_else_the_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert _hub_token.find("", str(tmp_path)) == ("", "")
    (tmp_path / "token").write_text("of-the-cache\n")
    assert _hub_token.find("", str(tmp_path))[0] == "of-the-cache"
    monkeypatch.setenv("HF_TOKEN", "of-the-login")
    assert _hub_token.find("", str(tmp_path))[0] == "of-the-login"
    own = tmp_path / "own"
    own.touch(mode=0o600)
    own.write_text("of-the-file")
    assert _hub_token.find(str(own), str(tmp_path)) == ("of-the-file", f"the file {own}")


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("x", 0o640, "mode 0640, open to others"),
        ("", 0o600, "must hold the token"),
        ("two words", 0o600, "must hold the token and nothing else"),
        (None, 0o600, "cannot be read: No such file"),
    ],
)
def test_a_token_file_that_is_open_empty_or_absent_is_refused_without_its_content(
    tmp_path: Path, text: str | None, mode: int, words: str
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(_hub_token.TokenError, match=words) as caught:
        _hub_token.find(str(file), str(tmp_path))
    assert not text or text not in str(caught.value).replace(str(file), "")


def test_a_job_outlives_who_started_it_and_is_found_with_its_result(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    job = Job(str(tmp_path / "job"))

    def work(report: object) -> dict[str, object]:
        return {"read": os.read(reading, 10).decode()}

    assert job.start({"what": "waiting"}, work, keep=[reading])
    found = Job(str(tmp_path / "job"))
    assert not found.start({"what": "another"}, work)
    assert (found.running(), found.about()["what"], found.wait(0.05)) == (True, "waiting", False)
    os.write(writing, b"go")
    assert found.wait(10)
    assert found.result() == {"error": "", "read": "go"}
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (JobError("the disk is full"), "the disk is full"),
        (FileNotFoundError(2, "No such file or directory", "/x"), "/x: No such file or directory"),
        (ZeroDivisionError("division by zero"), "it was ended from outside (ZeroDivisionError: division by zero)"),
    ],
    ids=["for a person", "of the system", "unexpected"],
)
def test_a_job_that_fails_says_why(tmp_path: Path, failure: Exception, words: str) -> None:
    def work(report: object) -> dict[str, object]:
        raise failure

    job = Job(str(tmp_path))
    job.start({}, work)
    assert job.wait(10)
    assert words in job.result()["error"]


def test_a_job_that_was_killed_does_not_count_as_done(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    job = Job(str(tmp_path))
    job.start({}, lambda report: {"read": os.read(reading, 1).decode()}, keep=[reading])
    os.kill(job.about()["pid"], signal.SIGKILL)
    assert job.wait(10)
    assert job.result()["error"] == "it was ended from outside; run again, and it goes on"
    os.close(reading)
    os.close(writing)


def test_progress_says_how_much_how_fast_and_how_long() -> None:
    before = {"doing": "copying", "done": 10e9, "total": 176e9}
    now = {**before, "done": 20e9}
    assert _watched.line("spark-worker", "org/model", now, before, 10) == (
        "spark-worker: copying org/model: 20.00 of 176.00 GB, 1000 MB/s, 3 min left"
    )
    assert _watched.line("a", "b", now, {}, 10) == "a: copying b: 20.00 of 176.00 GB"


def test_a_volume_is_the_heads_cache_whatever_the_order_of_its_options() -> None:
    wanted = _nfs.volume_options("192.0.2.1", "/srv/hf")
    assert wanted["o"] == "addr=192.0.2.1,nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600"
    turned = {**wanted, "o": ",".join(reversed(wanted["o"].split(",")))}
    assert _nfs.differences(turned, wanted) == []
    other = _nfs.volume_options("192.0.2.9", "/srv/other")
    assert _nfs.differences(other, wanted) == [
        "its path :/srv/other instead of :/srv/hf",
        f"its options {other['o']} instead of {wanted['o']}",
    ]
