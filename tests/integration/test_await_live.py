# SPDX-License-Identifier: Apache-2.0
"""Waiting for a world of ranks, through real plays with programs that speak the engine's anchors."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.plays import Played, play

# A stand-in for the engine: says what the engine says, then does what its rank is told. `watched` loads until a play
# has seen it loading.
ENGINE = """
import glob, http.server, sys, time
rank, port, fate = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def say(line): print(line, flush=True)
say('startup estimate 0.02 GiB within 20.30 GiB: window 16384 tokens, 1 request at once')
say('loading weights: 13.9 MiB of 27.1 MiB on this rank')
time.sleep(float(sys.argv[4]))
def watched():
    sightings = glob.glob(f'{sys.argv[5]}/**/await_live-*/0.json', recursive=True)
    return any('loading weights' in open(path).read() for path in sightings)
while fate == 'watched' and not watched():
    time.sleep(0.05)
if fate == 'unfit':
    say('largest fitting prompt-plus-reply window: 4096 tokens'); sys.exit(3)
if fate == 'taken':
    say(f'error: port {port} is already in use'); sys.exit(2)
if fate == 'bereft':
    time.sleep(0.5); say('fatal: rank 1 left while joining'); sys.exit(4)
if fate == 'stuck':
    time.sleep(600)
say(f'rank {rank} ready in 1.0 s')
if rank: time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{}')
    def log_message(self, *args): pass
server = http.server.HTTPServer(('127.0.0.1', port), Handler)
say(f'serving tiny at http://127.0.0.1:{port}')
server.serve_forever()
"""


class World:
    """Ranks on hosts that all are this machine."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.port = port
        self.hosts = {name: {"rank": rank} for rank, name in enumerate(("head", "worker"))}
        self.directory = f"{home}/{{{{ inventory_hostname }}}}/rank{{{{ rank }}}}"

    def start(self, *fates: str, seconds: float = 0) -> dict[str, Any]:
        argv = ["{{ python }}", "-c", "{{ engine }}", "{{ rank | string }}", str(self.port)]
        argv += ["{{ fates[rank] }}", str(seconds), f"{self.home}/controller"]
        return {
            "sparkpair.serving.rank_process": {
                "name": "rank{{ rank }}",
                "directory": self.directory,
                "log_dir": f"{self.home}/logs",
                "spec": {"argv": argv},
            },
            "vars": {"fates": fates, "python": sys.executable, "engine": ENGINE},
        }

    def wait(self, timeout: float = 20, **options: Any) -> dict[str, Any]:
        return {
            "sparkpair.serving.await_live": {
                "rank": "{{ rank }}",
                "world_size": 2,
                "directory": self.directory,
                "ready_url": f"http://127.0.0.1:{self.port}/v1/models",
                "timeout": timeout,
                **options,
            }
        }

    def play(self, *tasks: dict[str, Any], arguments: tuple[str, ...] = ()) -> Played:
        return play(self.home, tasks, *arguments, hosts=self.hosts)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def world(tmp_path: Path, port: int) -> Iterator[World]:
    one = World(tmp_path, port)
    yield one
    locks = list(tmp_path.glob("*/rank*/lock"))
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if any(entry.samefile(lock) for lock in locks):
                os.kill(int(entry.parts[2]), signal.SIGKILL)


def both(played: Played, task: int = 1) -> list[dict[str, Any]]:
    return [played.one(task, host) for host in ("head", "worker")]


def test_a_world_becomes_live_and_its_loading_is_shown(world: World):
    played = world.play(world.start("watched", "serves"), world.wait(timeout=100))
    for told in both(played):
        assert (told["verdict"], told["changed"]) == ("live", False)
        assert [one["host"] for one in told["ranks"]] == ["head", "worker"]
        assert told["ranks"][0]["anchors"]["served_name"] == "tiny"
    assert "rank 0 on head: loading weights: 13.9 MiB of 27.1 MiB on this rank, 0." in played.output
    assert "GiB of 0.02 estimated" in played.output
    assert "| rank 1 on worker: " in played.output
    assert "rank 0 on head: serving, 0." in played.output


def test_a_lost_rank_fails_every_host_at_once_with_the_evidence_of_all(world: World):
    played = world.play(world.start("bereft", "taken", seconds=1), world.wait(timeout=100))
    for told in both(played):
        assert told["failed"]
        assert told["verdict"] == "lost"
        assert "rank 1 on worker ended with exit code 2; rank 0 on head ended with exit code 4" in told["msg"]
        assert "    fatal: rank 1 left while joining\n" in told["msg"]
        assert f"    error: port {world.port} is already in use\n" in told["msg"]
        assert "What to do: another program has the port on worker" in told["msg"]
        assert [one["exit_code"] for one in told["ranks"]] == [4, 2]


def test_the_rank_that_still_runs_is_shown_too_and_left_running(world: World):
    played = world.play(world.start("stuck", "unfit"), world.wait(timeout=100), world.start("stuck", "unfit"))
    for told in both(played):
        assert "rank 1 on worker ended with exit code 3; rank 0 on head still runs" in told["msg"]
        assert "Set sparkpair_context to 4096 or less" in told["msg"]
        assert told["fitting_window_tokens"] == 4096
    assert not played.one(2, "head")["changed"]


def test_a_world_that_is_not_live_in_time_is_told_and_left_running(world: World):
    played = world.play(world.start("stuck", "serves"), world.wait(timeout=3), world.start("stuck", "serves"))
    for told in both(played):
        assert told["verdict"] == "timed out"
        assert re.match(r"The ranks are not live after [0-9]+ s and were left running\.", told["msg"])
        assert "rank 0 on head: loading weights: 13.9 MiB of 27.1 MiB on this rank" in told["msg"]
        assert "rank 1 on worker: ready after 1 s" in told["msg"]
    assert [told["changed"] for told in both(played, task=2)] == [False, False]


def test_with_one_fork_the_later_host_finds_what_the_first_saw(world: World):
    live = world.play(world.start("serves", "serves"), world.wait(), arguments=("--forks", "1"))
    assert [told["verdict"] for told in both(live)] == ["live", "live"]
    lost = world.play(world.start("bereft", "taken"), world.wait(), arguments=("--forks", "1"))
    head, worker = both(lost)
    assert "rank 0 on head ended with exit code 4; rank 1 was not looked at yet" in head["msg"]
    assert "rank 1 on worker ended with exit code 2; rank 0 on head ended with exit code 4" in worker["msg"]


def test_an_answer_of_another_program_on_the_port_is_not_taken_for_the_rank(world: World):
    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", world.port), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        played = world.play(world.start("taken", "serves", seconds=2), world.wait())
        server.shutdown()
        thread.join()
    assert [told["verdict"] for told in both(played)] == ["lost", "lost"]


def test_a_host_that_cannot_be_reached_fails_the_others_by_name(world: World):
    started = world.play(world.start("stuck", "stuck"))
    assert started.returncode == 0
    world.hosts["worker"].update(ansible_connection="ssh", ansible_host="127.0.0.1", ansible_port=1)
    played = world.play(world.wait(timeout=100))
    assert played.one(0, "worker")["unreachable"]
    assert "rank 1 on worker cannot be asked (the host does not answer" in played.one(0, "head")["msg"]
    assert "rank 0 on head still runs" in played.one(0, "head")["msg"]


def test_a_damaged_state_file_fails_the_wait_with_its_path(world: World):
    world.play(world.start("stuck", "stuck"))
    (world.home / "worker" / "rank1" / "status.json").write_text("{")
    head = world.play(world.wait()).one(0, "head")
    assert f"{world.home}/worker/rank1/status.json is damaged" in head["msg"]


def test_a_rank_that_was_never_started_is_told_at_once(world: World):
    told = world.play(world.wait(timeout=100)).one(0, "head")
    assert "rank 0 on head was never started; rank 1 on worker was never started" in told["msg"]
    assert "What to do: start rank 0 on head first" in told["msg"]


def test_o14_the_role_begins_its_report_of_a_failed_start_with_what_an_update_has_changed(world: World):
    updated = "there was an OS update since the last good start (20261101-101010 UTC): kernel 6.17.0 is 7.0.0 now"
    findings = [
        {"id": "updated", "host": "worker", "found": updated},
        {"id": "open_api", "host": "head", "found": "the API listens on 0.0.0.0 and needs no key"},
    ]
    settings = {"wait_timeout": 20, "engine": "sparkpair", "api_key_file": ""}
    spec = {"world_size": 2, "ready_url": f"http://127.0.0.1:{world.port}/v1/models"}
    known = {
        "__preflight_report": {"findings": findings},
        "__preflight_probe": {"probe": {"autostart": {"supervisor": None}}},
        "__settings_resolved": {"settings": settings},
        "__rank_specs": {"rank": "{{ rank }}", "directory": world.directory, "spec": spec, "container": None},
        "__roce_link_addresses": {"link": {"rdma": False}},
    }
    live = {"import_role": {"name": "sparkpair.serving.rank", "tasks_from": "live.yml"}, "vars": known}
    told = world.play(live).results[-1]["head"]["msg"].splitlines()
    assert told[0] == f"The start failed, and on worker {updated}."
    assert told[1].startswith("The ranks are not live: rank 0 on head was never started")


def test_check_mode_waits_for_nothing_and_says_so(world: World):
    told = world.play(world.wait(), arguments=("--check",)).one(0)
    assert told["skipped"]
    assert "Check mode starts no rank" in told["msg"]


def test_the_files_the_instances_share_are_gone_after_the_run(world: World):
    world.play(world.start("serves", "serves"), world.wait())
    assert list((world.home / "controller").glob("**/*.json")) == []
