# SPDX-License-Identifier: Apache-2.0
"""A rank as a supervised process, through real plays with real programs."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.plays import Played, play
from tests.waiting import until

# Says that it runs, so that a test can wait for what it does after.
PATIENT = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print('will not', flush=True))
deaf = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'
child = subprocess.Popen([sys.executable, '-c', deaf])
print('child', child.pid, flush=True)
while True:
    time.sleep(600)
"""
FAILING = "import sys; print('going down', flush=True); sys.exit(7)"


class Rank:
    """A rank's directory, and the tasks that act on it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = home / "ranks" / "rank0"
        self.logs = home / "logs"

    def task(self, source: str | None = PATIENT, **options: Any) -> dict[str, Any]:
        spec = {"spec": {"argv": [sys.executable, "-uc", source]}} if source is not None else {"state": "absent"}
        common = {"name": "rank0", "directory": str(self.directory), "log_dir": str(self.logs)}
        return {"sparkpair.serving.rank_process": {**common, **spec, **options}}

    def play(self, *tasks: dict[str, Any], arguments: tuple[str, ...] = (), prefix: tuple[str, ...] = ()) -> Played:
        return play(self.home, tasks, *arguments, prefix=prefix)

    @property
    def status(self) -> dict[str, Any]:
        return json.loads((self.directory / "status.json").read_text())

    def saved(self) -> list[str]:
        return [gzip.decompress(path.read_bytes()).decode() for path in sorted(self.logs.iterdir())]

    def wait_for(self, words: str) -> str:
        """Wait until the log holds `words`, and return it."""
        return until(lambda: words in (text := (self.directory / "rank.log").read_text()) and text)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    one = Rank(tmp_path)
    yield one
    # Whatever the test did to the state file, the rank's processes hold its lock.
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if entry.samefile(one.directory / "lock"):
                os.kill(int(entry.parts[2]), signal.SIGKILL)


def test_a_rank_is_started_once_and_outlives_the_play(rank: Rank):
    first, second = rank.play(rank.task(), rank.task()).results
    pid = first["head"]["pid"]
    assert (first["head"]["changed"], first["head"]["running"]) == (True, True)
    assert (second["head"]["changed"], second["head"]["pid"]) == (False, pid)
    assert runs(pid)
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null")
    supervisor = Path(f"/proc/{rank.status['supervisor']['pid']}/cmdline").read_text().split("\0")
    assert supervisor[1:3] == [str(rank.directory / "supervisor.py"), "rank0"]
    assert rank.directory.stat().st_mode & 0o077 == 0


def test_the_rank_gets_its_own_environment_and_nothing_of_the_plays(rank: Rank):
    source = "import os, time; print(dict(os.environ), os.getcwd(), flush=True); time.sleep(600)"
    task = rank.task(spec={"argv": [sys.executable, "-uc", source], "env": {"OWN": "yes"}, "cwd": str(rank.home)})
    rank.play({**task, "environment": {"STRAY": "no"}})
    told = rank.wait_for("OWN")
    assert "'OWN': 'yes'" in told
    assert "STRAY" not in told
    assert "ANSIBLE" not in told
    assert told.endswith(f"{rank.home}\n")


def test_check_mode_tells_the_truth_and_changes_nothing(rank: Rank):
    virgin = rank.play(rank.task(), rank.task(None), arguments=("--check",))
    assert [virgin.one(0)["changed"], virgin.one(1)["changed"]] == [True, False]
    assert not rank.directory.exists()
    pid = rank.play(rank.task()).one()["pid"]
    before = sorted(path.stat().st_mtime_ns for path in rank.directory.iterdir())
    tasks = [rank.task(), rank.task(STUBBORN), rank.task(None)]
    checked = rank.play(*tasks, arguments=("--check",))
    assert [checked.one(number)["changed"] for number in range(3)] == [False, True, True]
    assert [checked.one(number)["pid"] for number in range(3)] == [pid] * 3
    assert runs(pid)
    assert before == sorted(path.stat().st_mtime_ns for path in rank.directory.iterdir())


def test_the_difference_shows_what_changed_but_no_secret_anywhere(rank: Rank):
    def task(level: str, token: str) -> dict[str, Any]:
        env = {"LEVEL": level, "HF_TOKEN": token}
        source = "import os, time; print('token', os.environ['HF_TOKEN'], flush=True); time.sleep(600)"
        return rank.task(spec={"argv": [sys.executable, "-uc", source], "env": env})

    rank.play(task("one", "hf_first_secret"))
    rank.wait_for("token")
    played = rank.play(task("two", "hf_other_secret"), rank.task(None), arguments=("--diff", "-vvv"))
    diff = played.one()["diff"]
    assert json.loads(diff["before"])["spec"]["env"] == {"LEVEL": "one", "HF_TOKEN": "(secret)"}
    assert json.loads(diff["after"])["spec"]["env"] == {"LEVEL": "two", "HF_TOKEN": "(secret, changed)"}
    assert played.one()["last_lines"] == ["token ********"]
    # With -vvv the output holds the arguments of every task as well.
    assert "module_args" in played.output
    assert "hf_first_secret" not in played.output
    assert "hf_other_secret" not in played.output


def test_another_document_replaces_the_rank_and_saves_its_log(rank: Rank):
    old = rank.play(rank.task()).one()["pid"]
    rank.wait_for("up")
    result = rank.play(rank.task("print('new', flush=True)\n" + PATIENT)).one()
    assert result["changed"]
    assert result["pid"] != old
    assert not runs(old)
    assert (result["exit_code"], result["exit_signal"]) == (None, signal.SIGTERM)
    assert len(result["saved_logs"]) == 1
    header, text = rank.saved()[0].splitlines()
    assert header.startswith("# rank0, started 20")
    assert "ended by signal 15 (SIGTERM) at 20" in header
    assert text == "up"
    assert rank.wait_for("new").startswith("new\n")


def test_a_rank_that_ignores_the_request_is_killed_with_its_children(rank: Rank):
    rank.play(rank.task(STUBBORN))
    child = int(rank.wait_for("child").split()[1])
    result = rank.play(rank.task(None, stop_timeout=0.5)).one()
    assert result["exit_signal"] == signal.SIGKILL
    assert "will not" in rank.saved()[0]
    assert not runs(child)


def test_a_rank_that_ends_takes_along_what_it_started(rank: Rank):
    source = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    rank.play(rank.task(source))
    child = int(rank.wait_for("\n"))
    until(lambda: rank.status["ended_at"])
    assert not runs(child)
    assert rank.status["exit_code"] == 0


def test_a_crash_leaves_evidence_that_the_next_start_keeps(rank: Rank):
    rank.play(rank.task(FAILING))
    until(lambda: rank.status["ended_at"])
    result = rank.play(rank.task(FAILING)).one()
    assert result["changed"]
    assert result["previous"] == "ended with exit code 7"
    assert result["exit_code"] == 7
    assert result["last_lines"] == ["going down"]
    assert "ended with exit code 7" in rank.saved()[0]


def test_logs_saved_in_quick_succession_are_all_there_and_the_newest_are_kept(rank: Rank):
    # Six in one play take less than five seconds, so that some of them share one.
    tasks = [rank.task(f"print('run {number}', flush=True)\n" + PATIENT) for number in range(6)]
    wait = {"ansible.builtin.wait_for": {"path": str(rank.directory / "rank.log"), "search_regex": "up", "sleep": 0}}
    played = rank.play(*(task for one in tasks for task in (one, wait)), rank.task(None, log_keep=4))
    assert played.returncode == 0
    saved = [path for task in played.results for path in task["head"].get("saved_logs", [])]
    assert len(set(saved)) == 6
    kept = [text.splitlines()[1] for text in rank.saved()]
    assert kept == ["run 2", "run 3", "run 4", "run 5"]


def test_absent_leaves_the_saved_logs_only_and_is_quiet_the_second_time(rank: Rank):
    pid = rank.play(rank.task()).one()["pid"]
    first, second = rank.play(rank.task(None), rank.task(None)).results
    assert [first["head"]["changed"], second["head"]["changed"]] == [True, False]
    assert not runs(pid)
    assert not rank.directory.exists()
    assert len(rank.saved()) == 1


def test_a_log_that_cannot_be_saved_only_warns_and_is_not_lost(rank: Rank):
    rank.play(rank.task(FAILING))
    until(lambda: rank.status["ended_at"])
    rank.logs.write_text("in the way")
    result = rank.play(rank.task()).one()
    assert (result["changed"], result["running"]) == (True, True)
    assert any(f"{rank.logs}" in warning for warning in result["warnings"])
    assert rank.wait_for("up") == "going down\nup\n"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_process_that_was_not_started_here_is_never_signalled(rank: Rank, stranger):
    rank.play(rank.task(FAILING))
    ended = until(lambda: rank.status["ended_at"] and rank.status)
    reused = {"pid": stranger.pid, "start_ticks": ended["rank"]["start_ticks"]}
    pretending = {**ended, "rank": reused, "supervisor": reused, "ended_at": None, "exit_code": None}
    (rank.directory / "status.json").write_text(json.dumps(pretending))
    started = rank.play(rank.task()).one()
    assert started["running"]
    assert started["previous"].startswith("ended, exit code unknown")
    (rank.directory / "status.json").write_text(json.dumps({**rank.status, "boot_id": "before the reboot"}))
    os.killpg(started["pid"], signal.SIGKILL)
    until(lambda: not runs(started["pid"]))
    (rank.directory / "status.json").write_text(json.dumps({**pretending, "boot_id": "before the reboot"}))
    assert rank.play(rank.task(None)).one()["changed"]
    assert stranger.poll() is None


def test_a_copied_directory_neither_stops_nor_adopts_the_rank(rank: Rank, tmp_path: Path):
    pid = rank.play(rank.task()).one()["pid"]
    copy = tmp_path / "copy"
    shutil.copytree(rank.directory, copy)
    started = rank.play(rank.task(directory=str(copy))).one()
    assert started["changed"]
    assert started["pid"] != pid
    rank.play(rank.task(None, directory=str(copy)))
    assert runs(pid)
    assert not runs(started["pid"])


@pytest.mark.parametrize("damage", ["{", None], ids=["damaged", "lost"])
def test_without_its_state_file_a_running_rank_is_neither_killed_nor_doubled(rank: Rank, damage):
    pid = rank.play(rank.task()).one()["pid"]
    path = rank.directory / "status.json"
    path.unlink()
    if damage is not None:
        path.write_text(damage)
    played = rank.play(rank.task(STUBBORN), rank.task(), rank.task(None, stop_timeout=0.5))
    told = [played.one(number) for number in range(3)]
    assert runs(pid)
    for one in told:
        assert one["failed"]
        assert str(path) in one["msg"]
        assert f"{pid}" in one["msg"]
    assert rank.wait_for("up") == "up\n"


def test_a_rank_whose_supervisor_was_killed_is_known_and_can_be_stopped(rank: Rank):
    pid = rank.play(rank.task()).one()["pid"]
    os.kill(rank.status["supervisor"]["pid"], signal.SIGKILL)
    again, stopped = rank.play(rank.task(), rank.task(None)).results
    assert (again["head"]["changed"], again["head"]["pid"]) == (False, pid)
    assert stopped["head"]["changed"]
    assert not runs(pid)


def test_a_missing_program_leaves_the_running_rank_alone(rank: Rank):
    pid = rank.play(rank.task()).one()["pid"]
    missing = rank.task(spec={"argv": ["no-such-engine", "serve"], "cwd": "/no/such/place"})
    failed = rank.play(missing).one()
    assert failed["failed"]
    assert "no-such-engine is nowhere in PATH" in failed["msg"]
    assert "/no/such/place does not exist" in failed["msg"]
    assert "Traceback" not in json.dumps(failed)
    assert runs(pid)
    checked = rank.play(missing, arguments=("--check",)).one()
    assert checked["changed"]
    assert len(checked["warnings"]) == 2


def test_a_wrong_option_is_named_with_what_was_found(rank: Rank):
    wrong = [
        ({"spec": {"argv": "serve"}}, "argv must be a list of strings"),
        ({"spec": {"argv": ["true", "a\0b"]}}, "argv must not hold the character NUL"),
        ({"spec": {"argv": ["true"], "env": {"A=B": "x"}}}, "env.'A=B' cannot be set"),
        ({"spec": {"argv": ["true"], "env": {"N": 1}}}, "env.N must be a string, but is of type int"),
        ({"spec": {"argv": ["true"], "cwd": "here"}}, "cwd must be an absolute path, but is 'here'"),
        ({"name": "../rank0"}, "The option name is '../rank0'"),
    ]
    played = rank.play(*(rank.task(**options) for options, _ in wrong))
    for number, (_, words) in enumerate(wrong):
        failed = played.one(number)
        assert failed["failed"]
        assert words in failed["msg"]
    assert not (rank.directory / "status.json").exists()


def test_a_file_in_the_way_of_the_directory_is_named(rank: Rank):
    rank.directory.parent.write_text("in the way")
    failed = rank.play(rank.task()).one()
    assert failed["failed"]
    assert f"{rank.directory.parent}" in failed["msg"]
    assert "is a file where a directory is needed" in failed["msg"]


def test_a_directory_without_permission_is_named_with_the_user(rank: Rank):
    rank.directory.mkdir(parents=True)
    rank.directory.chmod(0o500)
    # Root may write everywhere: there, without that privilege.
    drop = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--securebits=+noroot") if os.geteuid() == 0 else ()
    failed = rank.play(rank.task(), prefix=drop).one()
    assert failed["failed"]
    assert f"has no permission for {rank.directory}" in failed["msg"]
    assert "chown" in failed["msg"]


def test_a_full_disk_is_named_and_no_rank_runs(rank: Rank):
    rank.directory.mkdir(parents=True)
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a mount namespace, so there is no small disk to fill")
    fill = f"mount -t tmpfs -o size=16k none {rank.directory} && cat /dev/zero > {rank.directory}/fill 2>/dev/null; "
    prefix = ("unshare", "-rm", "sh", "-c", fill + 'exec "$@"', "sh")
    failed = rank.play(rank.task(), prefix=prefix).one()
    assert failed["failed"]
    assert f"the disk that holds {rank.directory}" in failed["msg"]
    assert "is full" in failed["msg"]


def test_two_plays_do_not_change_a_rank_at_once(rank: Rank):
    rank.directory.mkdir(parents=True)
    descriptor = os.open(rank.directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    failed = rank.play(rank.task()).one()
    os.close(descriptor)
    assert "Another play is changing the rank" in failed["msg"]
    assert list(rank.directory.iterdir()) == []
