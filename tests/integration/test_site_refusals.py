# SPDX-License-Identifier: Apache-2.0
"""Bad input gets one message that names host, setting or path and the remedy, and nothing is started."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.plays import play
from tests.integration.site import HEAD, ROOT, WORKER, Run, Site, free_ports


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A rehearsal of which nothing exists yet."""
    return Site(tmp_path / "site")


def refused(site: Site, run: Run) -> str:
    """The message of a run that was refused before it created anything."""
    assert run.returncode != 0, run.output
    assert run.changed == 0
    assert not site.home.exists()
    assert "Traceback" not in run.output
    return run.failure()


def test_every_mistake_in_the_settings_comes_at_once_with_where_it_was_set(site: Site, tmp_path: Path) -> None:
    extra = tmp_path / "more.yml"
    extra.write_text("sparkpair_thinking: perhaps\nsparkpair_parallel: 9\n")
    message = refused(site, site.run("site", "-e", "sparkpair_context=1.5", "-e", f"@{extra}", parallell=3))
    lines = message.splitlines()
    assert lines[0] == "4 things in the settings or the inventory must be put right; nothing has been touched."
    assert any("sparkpair_parallell" in line and "did you mean sparkpair_parallel?" in line for line in lines)
    assert any("sparkpair_context" in line and '"1.5" is not a whole number' in line for line in lines)
    assert any("sparkpair_parallel " in line and "9 is too large" in line for line in lines)
    assert any("sparkpair_thinking" in line and f"Set at {extra}:1." in line for line in lines)


def test_a_run_of_one_host_of_the_pair_is_refused_by_name(site: Site) -> None:
    run = site.run("site", "--limit", WORKER)
    assert run.returncode != 0
    assert f"this run leaves out {HEAD}" in run.failure(WORKER)


def test_a_taken_port_is_refused_with_its_owner(site: Site) -> None:
    with socket.create_server(("127.0.0.1", site.port)):
        message = refused(site, site.run("site"))
    assert message.splitlines()[1].startswith(f"1. {HEAD}: port {site.port} is taken: process ")
    assert "Remedy: end that process, or set sparkpair_port to a free port." in message


def test_o13_a_state_directory_below_a_file_is_found_on_every_host_for_itself(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = site.run("site", state_dir=f"{tmp_path}/file/{{{{ inventory_hostname }}}}")
    message = refused(site, run)
    for host in (HEAD, WORKER):
        assert f"{host}: the state directory {tmp_path}/file/{host} cannot be created" in message
        assert run.result("Look at the host", host)["probe"]["state_dir"] == f"{tmp_path}/file/{host}"
    assert "set sparkpair_state_dir to another directory" in message
    findings = run.result("Stop when anything")["findings"]
    found = {host: sorted(one["id"] for one in findings if one["host"] == host) for host in (HEAD, WORKER)}
    assert found[HEAD] == found[WORKER] != []


@contextlib.contextmanager
def small_disk(path: Path, size: str, *options: str) -> Iterator[Path]:
    """A disk of a few bytes; the test is skipped where this account may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this account may not mount a small disk: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_read_only_state_directory_is_refused_with_the_path(site: Site, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m", "ro") as disk:
        run = site.run("site", state_dir=f"{disk}/{{{{ inventory_hostname }}}}")
    assert run.returncode != 0
    assert f"the state directory {disk}/{HEAD} is on a file system that is mounted read-only" in run.failure()


def test_a_disk_without_room_for_the_miniature_is_refused_before_it_is_filled(site: Site, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        run = site.run("site", state_dir=f"{disk}/{{{{ inventory_hostname }}}}")
        assert list(disk.iterdir()) == []
    assert run.returncode != 0
    assert f"8 MiB are free on the disk of {disk}" in run.failure()
    assert "Wanted: 96 MiB for the miniature checkpoint" in run.failure()


def test_a_disk_that_fills_up_while_the_miniature_is_written_keeps_nothing_half_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        task = {"state_dir": str(disk / "state"), "engine_command": [sys.executable, "-m", "sparkpair"]}
        played = play(tmp_path, [{"sparkpair.serving.miniature_checkpoint": task}])
        result = played.one()
        assert result["failed"]
        assert f"{disk}/state/checkpoints/miniature-seed0" in result["msg"]
        assert "That disk has 8 MiB free; sparkpair_state_dir decides where the checkpoint goes." in result["msg"]
        assert "Traceback" not in result["msg"]
        assert list((disk / "state" / "checkpoints").iterdir()) == []


@pytest.fixture
def own(miniature: Path, tmp_path: Path) -> Path:
    """A checkpoint directory of the user's own."""
    return shutil.copytree(miniature, tmp_path / "own")


def test_everything_that_is_wrong_with_the_users_checkpoint_is_named(site: Site, own: Path) -> None:
    (own / "config.json").unlink()
    shard = min(own.glob("*.safetensors"))
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size - 100)
    message = refused(site, site.run("site", model=str(own)))
    assert f"the checkpoint in {own} is not complete: config.json cannot be read: No such file or directory" in message
    assert f"{shard.name} has {size - 100} bytes, and its header announces {size}" in message


def test_what_can_only_mean_one_thing_is_taken_and_what_is_left_open_is_chosen(site: Site, own: Path) -> None:
    words = ["sparkpair_context=4096", "sparkpair_thinking=no", "sparkpair_memory_reserve_gib=0.5"]
    with contextlib.ExitStack() as sockets:
        # Where 8888 is taken already, by whomever, the test has what it needs.
        with contextlib.suppress(OSError):
            sockets.enter_context(socket.create_server(("127.0.0.1", 8888)))
        arguments = [part for word in words for part in ("-e", word)]
        run = site.run("site", "--check", *arguments, model=str(own), port=0)
    assert run.returncode == 0, run.output
    # Strings from the command line.
    settings = run.result("Check every setting")["settings"]
    assert (settings["context"], settings["thinking"], settings["memory_reserve_gib"]) == (4096, False, 0.5)
    spec = run.result("Write down the rank")["spec"]
    argv = spec["argv"]
    assert "--no-thinking" in argv
    assert argv[argv.index("--context") + 1] == "4096"
    # A port that is left to choose avoids the taken one.
    assert run.result("Stop when anything")["ports"]["port"] >= 18888
    # A complete checkpoint of the user's own is served under its name.
    assert argv[argv.index("serve") + 1] == str(own)
    assert argv[argv.index("--name") + 1] == "own"
    assert len(spec["checkpoint"]["digest"]) == 64


def test_an_inventory_without_worker_is_refused(site: Site, tmp_path: Path) -> None:
    inventory = tmp_path / "alone.json"
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    groups = {"head": {"hosts": {HEAD: local}}, "workers": {"hosts": {}}}
    inventory.write_text(json.dumps({"sparks": {"children": groups}}))
    run = site.run("site", "-i", str(inventory), fabric_address="127.0.0.1")
    assert run.returncode != 0
    assert f"inventory group workers: it has no host, so {HEAD} would serve alone" in run.failure()


def test_an_inventory_that_names_no_pair_is_refused_instead_of_ending_well_with_nothing_done(site: Site) -> None:
    for playbook in ("site", "status", "teardown"):
        run = site.run(playbook, "-i", "localhost,")
        assert run.returncode != 0
        assert "has no host in the groups head and workers" in run.failure("localhost")


def on_a_terminal(site: Site, *words: str) -> str:
    """What a person reads of a run of site.yml."""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"}
    settings = json.dumps({"sparkpair_port": site.port, "sparkpair_master_port": site.master_port})
    command = [sys.executable, "-m", "ansible", "playbook", "playbooks/site.yml", "-e", settings, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def test_a_worker_that_cannot_be_reached_is_told_once_with_its_place_and_what_to_do(site: Site, tmp_path: Path) -> None:
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (port,) = free_ports(1)
    away = {"ansible_host": "127.0.0.1", "ansible_port": port, "ansible_user": "spark"}
    groups = {"head": {"hosts": {HEAD: local}}, "workers": {"hosts": {WORKER: away}}}
    state = {
        "sparkpair_state_dir": f"{site.home}/{{{{ inventory_hostname }}}}",
        "sparkpair_fabric_address": "127.0.0.1",
    }
    inventory = tmp_path / "away.json"
    inventory.write_text(json.dumps({"sparks": {"vars": state, "children": groups}}))
    told = " ".join(on_a_terminal(site, "-i", str(inventory)).split())
    assert told.count(f"{WORKER} cannot be reached over ssh at spark@127.0.0.1 port {port}: Connection refused.") == 1
    assert told.count("Connection refused") == 1
    assert "start the ssh server there" in told
    assert not site.home.exists()


def test_a_host_whose_python_runs_nothing_is_told_with_the_setting(site: Site, tmp_path: Path) -> None:
    told = on_a_terminal(site, "-i", str(two_local_hosts(site, tmp_path, ansible_python_interpreter="/nowhere/python")))
    words = f"{WORKER} has no Python that runs a module (/nowhere/python was tried): "
    assert words in " ".join(told.split())
    assert f"set ansible_python_interpreter of {WORKER} to" in " ".join(told.split())
    assert "deserialization" not in told
    assert not site.home.exists()


def test_a_worker_that_is_the_heads_machine_under_another_address_is_refused(site: Site, tmp_path: Path) -> None:
    told = on_a_terminal(site, "-i", str(two_local_hosts(site, tmp_path)))
    assert f"{WORKER}: this is the machine that {HEAD} is, too ({socket.gethostname()})" in told
    assert f"correct ansible_host of {WORKER} or of {HEAD}" in told
    assert not site.home.exists()


def two_local_hosts(site: Site, tmp_path: Path, **of_the_worker: str) -> Path:
    """An inventory of this machine twice, under two addresses that are documentation's."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    head = {**local, "sparkpair_fabric_address": "192.0.2.1"}
    worker = {**local, "sparkpair_fabric_address": "192.0.2.2", **of_the_worker}
    groups = {"head": {"hosts": {HEAD: head}}, "workers": {"hosts": {WORKER: worker}}}
    state = {"sparkpair_state_dir": f"{site.home}/{{{{ inventory_hostname }}}}"}
    inventory = tmp_path / "twice.json"
    inventory.write_text(json.dumps({"sparks": {"vars": state, "children": groups}}))
    return inventory


def test_a_refusal_is_not_printed_a_second_time_as_data(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = on_a_terminal(site, "-e", f"sparkpair_state_dir={tmp_path}/file/{{{{ inventory_hostname }}}}")
    assert f"{HEAD}: the state directory {tmp_path}/file/{HEAD} cannot be created" in told
    assert "severity:" not in told
    assert "findings:" not in told
