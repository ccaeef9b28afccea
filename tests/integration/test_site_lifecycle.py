# SPDX-License-Identifier: Apache-2.0
"""The life of a pair through its playbooks: start, no change, change, lost rank, restart, stop."""

from __future__ import annotations

import gzip
import json
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.integration.site import HEAD, ROOT, WORKER, Site


def is_free(port: int) -> bool:
    """Say whether nothing listens on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def wait_for_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(descriptor, "rb"):
        assert select.select([descriptor], [], [], 30)[0], f"process {pid} still runs"


def test_a04_a_check_on_a_clean_machine_tells_what_would_happen_and_leaves_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path / "clean")
    run = site.run("site", "--check", "--diff")
    assert run.returncode == 0, run.output
    assert run.result("Write the miniature checkpoint")["changed"]
    assert run.result("Start the rank", WORKER)["changed"]
    assert "a real run would start or replace all ranks" in run.told("Say how the pair serves")
    assert not site.home.exists()
    assert is_free(site.port)


def test_a04_no_verb_trips_over_what_a_check_of_it_skips(tmp_path: Path) -> None:
    site = Site(tmp_path / "clean")
    for verb in ("teardown", "doctor", "purge"):
        run = site.run(verb, "--check", "--diff", output_dir=str(tmp_path))
        assert run.returncode == 0, run.output
        assert not site.home.exists(), verb


def test_a_converged_pair_answers_through_both_ranks(pair: Site) -> None:
    run = pair.converge()
    summary = run.told("Say how the pair serves")
    assert summary.splitlines()[0] == "LIVE"
    assert f"http://127.0.0.1:{pair.port}/v1" in summary
    reply = run.result("Ask for an answer")
    assert reply["answer"].strip()
    assert [rank["rank"] for rank in reply["ranks"]] == [0, 1]
    with urllib.request.urlopen(f"http://127.0.0.1:{pair.port}/v1/models", timeout=10) as models:
        assert json.load(models)["data"][0]["id"] == "GLM-5.3-Flash-miniature"


def test_a_second_run_changes_nothing_and_starts_nothing(pair: Site) -> None:
    before = pair.live()
    run = pair.converge()
    assert (run.changed, pair.pids()) == (0, before)


def test_a04_a_check_on_a_live_pair_finds_nothing_to_do(pair: Site) -> None:
    before = pair.live()
    run = pair.run("site", "--check", "--diff")
    assert (run.returncode, run.changed, pair.pids()) == (0, 0, before)
    assert "serves as wanted" in run.told("Say how the pair serves")


def test_a_check_of_a_changed_setting_shows_the_change_and_touches_nothing(pair: Site) -> None:
    before = pair.live()
    run = pair.run("site", "--check", "--diff", max_tokens=777)
    assert run.returncode == 0, run.output
    difference = run.result("Start the rank")["diff"]
    # As an argument of its own: the digits alone may be part of a digest.
    assert '"777"' in difference["after"]
    assert '"777"' not in difference["before"]
    assert pair.pids() == before


def test_a_changed_setting_replaces_both_ranks_once(pair: Site) -> None:
    before = pair.live()
    pair.converge(max_tokens=555)
    assert not set(before) & set(pair.pids())


@pytest.mark.parametrize(
    ("playbook", "settings", "words"),
    [
        ("site", {"extra_args": ["--no-such-argument"]}, "the engine refuses the arguments of rank0"),
        ("site", {"engine_command": ["/nowhere/sparkpair"]}, "does not work (No such file or directory)"),
        ("restart", {"context": "many"}, '"many" is not a whole number'),
        ("restart", {"model": "/nowhere/model"}, "the checkpoint directory /nowhere/model does not exist"),
    ],
)
def test_a_mistake_leaves_the_running_pair_alone(
    pair: Site, playbook: str, settings: dict[str, object], words: str
) -> None:
    before = pair.live()
    run = pair.run(playbook, **settings)
    assert run.returncode != 0
    assert words in run.failure()
    assert pair.live() == before


def test_a_lost_rank_ends_the_other_and_the_next_run_brings_both_back_with_their_logs_saved(pair: Site) -> None:
    before = pair.live()
    saved = {host: pair.logs(host) for host in (HEAD, WORKER)}
    os.kill(before[1], signal.SIGKILL)
    for pid in before:
        wait_for_end(pid)
    pair.converge()
    assert not set(before) & set(pair.pids())
    for host in (HEAD, WORKER):
        (new,) = [path for path in pair.logs(host) if path not in saved[host]]
        assert "ready in" in gzip.decompress(new.read_bytes()).decode()
    (head_log,) = [path for path in pair.logs(HEAD) if path not in saved[HEAD]]
    assert "rank 1" in gzip.decompress(head_log.read_bytes()).decode().splitlines()[-1]


def test_a_restart_replaces_both_ranks_although_nothing_changed(pair: Site) -> None:
    before = pair.live()
    run = pair.run("restart")
    assert run.returncode == 0, run.output
    assert not set(before) & set(pair.pids())


def test_a_damaged_checkpoint_is_written_again_and_does_not_disturb_the_running_pair(pair: Site) -> None:
    before = pair.live()
    config = pair.state_dir(WORKER) / "checkpoints" / "miniature-seed0" / "config.json"
    whole = config.read_bytes()
    config.write_bytes(whole[:-5])
    run = pair.converge()
    assert run.result("Write the miniature checkpoint", WORKER)["changed"]
    assert config.read_bytes() == whole
    assert pair.pids() == before


def test_a_teardown_leaves_no_process_and_no_port_and_keeps_what_the_user_has_and_status_tells(pair: Site) -> None:
    pids = pair.live()
    live = pair.run("status")
    told = live.told("Say how the pair is")
    assert (live.returncode, live.changed) == (0, 0)
    assert f"{HEAD}: rank 0 runs, process {pids[0]}" in told
    assert f"{WORKER}: rank 1 runs, process {pids[1]}" in told
    assert f"endpoint http://127.0.0.1:{pair.port}/v1: ready" in told

    checked = pair.run("teardown", "--check")
    assert (checked.returncode, pair.pids()) == (0, pids)
    assert checked.changed > 0
    note = pair.state_dir(HEAD) / "note-of-the-user"
    note.write_text("mine")
    run = pair.run("teardown")
    assert run.returncode == 0, run.output
    for pid in pids:
        wait_for_end(pid)
    assert is_free(pair.port)
    assert is_free(pair.master_port)
    assert note.read_text() == "mine"
    assert (pair.state_dir(WORKER) / "checkpoints" / "miniature-seed0" / "manifest.json").exists()
    assert pair.logs(HEAD)
    assert "kept in" in run.told("Say what is left")
    assert pair.run("teardown").changed == 0

    stopped = pair.run("status")
    assert (stopped.returncode, stopped.changed) == (0, 0)
    assert f"{WORKER}: rank 1 was not started" in stopped.told("Say how the pair is")


def test_the_playbooks_run_by_their_full_names_from_anywhere(tmp_path: Path) -> None:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    command = [
        sys.executable,
        "-m",
        "ansible",
        "playbook",
        "-i",
        str(ROOT / "inventories" / "rehearsal"),
        "sparkpair.serving.status",
    ]
    state = ["-e", json.dumps({"sparkpair_state_dir": f"{tmp_path}/{{{{ inventory_hostname }}}}"})]
    done = subprocess.run(
        [*command, *state], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 was not started" in done.stdout
