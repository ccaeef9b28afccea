# SPDX-License-Identifier: Apache-2.0
"""The pair's supervisor and a worker's agent as real programs: both ranks or neither, one owner at a time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.autostart.pair import HEAD, WORKER, Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_o05_o06_a_boot_brings_both_ranks_up_and_a_killed_rank_brings_both_down_and_up_again(pair: Pair) -> None:
    pair.boots(HEAD)
    # Nothing is started before all hosts are there.
    assert pair.says("waits: worker does not answer")
    assert pair.starts() == []
    pair.boots(WORKER)
    pair.says("serves")
    assert pair.serves()
    before = pair.pids()
    for number, host in ((1, WORKER), (0, HEAD)):
        killed = pair.pids()[number]
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert f"{host}: rank{number} ended by signal 9" in pair.says("stops: ")
        pair.says("serves")
        assert pair.serves()
    assert not set(before) & set(pair.pids())
    # Two failures are remembered, and the log of every run was kept.
    assert len(pair.state()["strikes"]) == 2
    assert [len(pair.saved(host)) for host in (HEAD, WORKER)] == [2, 2]
    assert any("fatal: rank 1 left" in log for log in pair.saved(HEAD))


def test_three_failed_starts_keep_the_pair_down_over_a_boot_and_say_why_until_somebody_starts_it(pair: Pair) -> None:
    fault = pair.home / "fault"
    fault.write_text("1 no room for the weights")
    pair.boots(HEAD, WORKER)
    cause = "worker: rank1 ended with exit code 7: error: no room for the weights"
    assert cause in pair.says("stays down after 3 failed starts")
    assert pair.daemons[HEAD].ends() == 3
    assert pair.starts().count("rank1") == 3
    assert pair.pids() == [None, None]
    state = pair.state()
    assert (state["runs"], [one["cause"] for one in state["strikes"]]) == (False, [cause] * 3)
    assert cause in state["words"]
    assert sum("no room for the weights" in log for log in pair.saved(WORKER)) == 3

    fault.unlink()
    pair.boots(HEAD)
    assert pair.daemons[HEAD].ends() == 3
    pair.runs(HEAD)
    pair.says("serves")
    assert pair.serves()
    assert pair.state()["strikes"] == []


def test_o06_what_is_stopped_by_hand_stays_stopped_over_a_boot_and_a_shutdown_is_no_such_stop(pair: Pair) -> None:
    pair.boots(HEAD, WORKER)
    pair.says("serves")
    assert pair.daemons[HEAD].end() == 0
    assert pair.pids() == [None, None]
    assert "was stopped by systemctl stop sparkpair-head" in pair.state()["words"]
    pair.boots(HEAD)
    assert "not started by this boot" in pair.says("was stopped by systemctl stop")
    assert pair.daemons[HEAD].ends() == 0

    pair.runs(HEAD)
    pair.says("serves")
    # The machine goes down, and comes up again.
    pair.flag.touch()
    assert pair.daemons[HEAD].end() == 0
    assert pair.pids() == [None, None]
    pair.flag.unlink()
    pair.boots(HEAD)
    pair.says("serves")
    assert pair.serves()

    # The worker's own stop brings both down, and so it stays until its unit is started.
    assert pair.daemons[WORKER].end() == 0
    pair.says("stops: worker was stopped by hand")
    pair.says("waits: worker does not answer")
    pair.boots(WORKER)
    assert pair.daemons[WORKER].ends() == 0
    assert pair.pids() == [None, None]
    pair.runs(WORKER)
    pair.says("serves")
    assert pair.serves()
    assert pair.state()["strikes"] == []


def test_only_a_playbook_that_has_the_ranks_acts_and_one_that_was_cut_off_gives_them_back_by_time(pair: Pair) -> None:
    pair.boots(HEAD, WORKER)
    pair.says("serves")
    before = pair.pids()
    pair.owner("taken", by="site.yml", seconds=600)
    pair.says("paused: site.yml has the ranks")
    killed = before[1]
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    # The playbook stops and starts what it wants; here it is cut off in between.
    given = pair.owner("taken", by="site.yml", seconds=1)
    assert [one["changed"] for one in given] == [False, False]
    pair.says("serves")
    assert pair.serves()
    assert not set(before) & set(pair.pids())
    assert len(pair.starts()) == 4
    # Nobody but the playbook has brought the ranks down, so nothing speaks against the start.
    assert pair.state()["strikes"] == []

    # A supervisor that is replaced while a playbook has the ranks leaves them running.
    running = pair.pids()
    pair.owner("taken", seconds=600)
    assert pair.daemons[HEAD].end() == 0
    assert pair.daemons[WORKER].end() == 0
    assert pair.pids() == running
    pair.runs(HEAD, WORKER)
    pair.says("paused: ")
    assert [one["changed"] for one in pair.owner("returned")] == [False, False]
    pair.says("serves")
    assert (pair.pids(), pair.serves()) == (running, True)


def test_o06_a_worker_that_is_lost_ends_both_ranks_without_a_strike_and_the_pair_comes_back_with_it(pair: Pair) -> None:
    pair.boots(HEAD, WORKER)
    pair.says("serves")
    before = pair.pids()
    # As a power cut looks from the head: nobody answers, and nobody closes a connection.
    pair.daemons[WORKER].process.send_signal(signal.SIGSTOP)
    pair.says("stops: worker does not answer")
    pair.says("waits: worker does not answer")
    assert pair.pids()[0] is None
    pair.daemons[WORKER].process.send_signal(signal.SIGCONT)
    pair.says("serves")
    assert pair.serves()
    assert not set(before) & set(pair.pids())
    assert pair.state()["strikes"] == []
    # The other way round: without the head the worker's rank does not go on alone.
    pair.daemons[HEAD].process.kill()
    pair.daemons[HEAD].ends()
    rank0 = pair.pids()[0]
    pair.says("stops: the head has not been heard", WORKER)
    pair.says("waits for the head's supervisor", WORKER)
    assert pair.pids()[1] is None
    pair.boots(HEAD)
    pair.says("serves")
    assert pair.serves()
    assert rank0 not in pair.pids()


def test_a_teardown_leaves_the_ranks_stopped_and_a_run_of_the_site_gives_them_back(pair: Pair) -> None:
    pair.boots(HEAD, WORKER)
    pair.says("serves")
    given = pair.owner("stopped", by="teardown.yml", seconds=5)
    assert [one["changed"] for one in given] == [True, True]
    # The playbook stops the ranks; here their ends come from elsewhere, and nobody brings them back.
    for pid in pair.pids():
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
    assert (pair.daemons[HEAD].ends(), pair.daemons[WORKER].ends()) == (0, 0)
    assert pair.pids() == [None, None]
    assert "was stopped by teardown.yml" in pair.state()["words"]
    assert [one["changed"] for one in pair.owner("stopped", by="teardown.yml", seconds=5)] == [False, False]
    assert [one["changed"] for one in pair.owner("returned")] == [True, True]
    assert [one["changed"] for one in pair.owner("returned")] == [False, False]
    pair.boots(HEAD, WORKER)
    pair.says("serves")
    assert pair.serves()
