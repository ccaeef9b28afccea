# SPDX-License-Identifier: Apache-2.0
"""The whole life of a pair in containers by the real playbooks: virgin, converged, changed, refitted, torn down."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _autostart_files
from ansible_collections.sparkpair.serving.plugins.module_utils._autostart_keeper import Keeper

from tests.integration.docker.daemons import BASE, Daemon
from tests.integration.docker.sparks import IMAGE, NAME, PATCHES, Sparks, make_image
from tests.integration.site import HEAD, WORKER


@pytest.fixture(scope="module")
def sparks(daemons: list[Daemon], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sparks]:
    """A pair of which the head has the image and both have the weights; it lives through the tests in their order."""
    home = tmp_path_factory.mktemp("sparks")
    make_image(daemons[0], home / "image")
    pair = Sparks(home / "pair", daemons)
    pair.give_weights()
    yield pair
    for daemon in daemons:
        daemon.remove_containers()
        daemon.run("image", "rm", "--force", IMAGE, check=False)


def test_o04_tensorfold_from_an_inventory_to_live_and_a_second_run_changes_nothing(sparks: Sparks) -> None:
    checked = sparks.run("site", "--check", "--diff")
    assert checked.returncode == 0, checked.output
    assert "a real run would start or replace all ranks" in checked.told("Say how the pair serves")
    assert [daemon.names() for daemon in sparks.daemons.values()] == [[], []]
    assert not sparks.state_dir(HEAD).exists()

    live = sparks.converge()
    told = live.told("Say how the pair serves")
    assert told.startswith("LIVE")
    assert f"recipe v1.10, patches {PATCHES}, on 2 ranks" in told
    assert "CC BY-NC-ND 4.0" in told
    for rank, (host, seen) in enumerate(sparks.containers().items()):
        own, config = seen["HostConfig"], seen["Config"]
        assert (own["NetworkMode"], own["IpcMode"], own["RestartPolicy"]["Name"]) == ("host", "host", "no")
        assert (own["Privileged"], own["CapAdd"], own["ShmSize"]) == (False, ["IPC_LOCK"], 16 << 30)
        assert {one["Name"]: one["Hard"] for one in own["Ulimits"]} == {"memlock": -1, "stack": 67108864}
        assert own["DeviceRequests"][0]["Count"] == -1
        assert config["Cmd"][:2] == ["tensorfold", "serve"]
        assert config["Cmd"][config["Cmd"].index("--rank") + 1] == str(rank)
        assert {"TF_GLM_KV=fp8", "TF_GLM_HC_SPLIT=1", "HF_HUB_OFFLINE=1"} <= set(config["Env"])
        mounts = {mount["Destination"]: mount["Source"] for mount in seen["Mounts"]}
        assert mounts["/cache"] == f"{sparks.home}/{host}-kernels/{PATCHES}"

    before = sparks.ids()
    checked = sparks.run("site", "--check", "--diff")
    assert (checked.returncode, checked.changed) == (0, 0), checked.output
    # O04: what somebody has started again by hand, or Docker after a reboot, is what is wanted.
    for daemon in sparks.daemons.values():
        daemon.run("stop", NAME)
    for daemon in sparks.daemons.values():
        daemon.run("start", NAME)
    again = sparks.run("site")
    assert (again.returncode, again.changed) == (0, 0), again.output
    assert again.told("Say how the pair serves").startswith("LIVE")
    assert sparks.ids() == before


def test_only_a_change_replaces_the_ranks_and_a_check_of_it_replaces_none(sparks: Sparks) -> None:
    before = sparks.ids()
    checked = sparks.run("site", "--check", "--diff", max_tokens=4096)
    assert checked.returncode == 0, checked.output
    assert "4096" in json.dumps(checked.result("Start the rank")["diff"])
    assert checked.changed > 0
    assert sparks.ids() == before
    # A mistake that only the engine knows leaves the running pair alone.
    refused = sparks.run("site", extra_args=["--reasoning-effort", "huge"])
    assert "refuses the arguments of rank0" in refused.failure()
    assert "invalid choice: 'huge'" in refused.failure()
    assert sparks.ids() == before
    changed = sparks.converge(max_tokens=4096)
    assert changed.changed > 0
    assert not set(sparks.ids()) & set(before)
    for rank, host in enumerate((HEAD, WORKER)):
        (saved,) = sparks.saved(host)
        assert f"rank {rank} ready in" in saved


def test_the_live_pair_shows_what_it_is_for(sparks: Sparks, tmp_path: Path) -> None:
    checked = sparks.run("check", max_tokens=4096, output_dir=str(tmp_path))
    assert checked.returncode == 0, checked.output
    found = json.loads((tmp_path / f"check-{HEAD}.json").read_text())["checks"]
    assert {one["name"]: one["verdict"] for one in found} == dict.fromkeys(
        ("needle", "function call", "structured output", "picture", "prompt reuse", "alone and together"), "passed"
    )


def test_m02_a_window_that_does_not_fit_is_refitted_and_a_split_connection_that_fails_left_out(sparks: Sparks) -> None:
    kernels = sparks.home / f"{WORKER}-kernels" / PATCHES
    (kernels / "extension").mkdir()
    (kernels / "extension" / "lock").touch()
    secret = "open sesame".replace(" ", "-")
    faults = {"STAND_IN_NCCL": "9", "STAND_IN_FITS": "524288"}
    sparks.settings = {"extra_env": {**faults, "STAND_IN_PASSWORD": secret}}
    live = sparks.converge()
    assert "window    524288 tokens" in live.told("Say how the pair serves")
    argv = sparks.containers()[HEAD]["Config"]["Cmd"]
    # The refit is not forgotten when the connection fails after it.
    assert argv[-2:] == ["--context", "524288"]
    assert argv[argv.index("--context") + 1] == "1048576"
    env = sparks.containers()[WORKER]["Config"]["Env"]
    assert {"TF_GLM_HC_SPLIT=0", "TF_GLM_PREFILL_OVERLAP=0"} <= set(env)
    assert "sparkpair_split: false makes that permanent" in live.output
    # A compiler that was killed leaves a lock, on which the next one would wait for ever.
    assert not (kernels / "extension" / "lock").exists()
    # What was asked for counts: nothing is to be changed until something else is asked for.
    assert sparks.run("site").changed == 0


def test_the_evidence_leaves_without_secrets(sparks: Sparks, tmp_path: Path) -> None:
    told = sparks.run("doctor", output_dir=str(tmp_path))
    assert told.returncode == 0, told.output
    assert "last lines of rank1" in told.told("Say what was found", WORKER)
    (archive,) = tmp_path.glob(f"{HEAD}-evidence-*.tar.gz")
    with tarfile.open(archive) as opened:
        texts = {name: opened.extractfile(name).read().decode() for name in opened.getnames()}
    assert {"logs/rank0.log", "docker/rank0.json", "report.json", "host/df_-h.txt", "state/made.json"} <= set(texts)
    assert any(name.startswith("logs/saved/") for name in texts)
    assert "STAND_IN_PASSWORD" in texts["docker/rank0.json"]
    assert not [name for name, text in texts.items() if "open-sesame" in text]
    assert not list(sparks.state_dir(HEAD).glob("evidence-*"))


def test_o05_a_pair_that_lost_a_rank_is_told_and_brought_back_whole(sparks: Sparks) -> None:
    before = sparks.ids()
    sparks.daemons[WORKER].run("kill", NAME)
    sparks.daemons[HEAD].run("wait", NAME)
    status = sparks.run("status").told("Say how the pair is")
    assert f"{WORKER}: rank 1 ended by signal 9" in status
    sparks.settings = {}
    sparks.converge()
    assert not set(sparks.ids()) & set(before)
    assert "ended by signal 9" in sparks.saved(WORKER)[-1].splitlines()[0]
    status = sparks.run("status").told("Say how the pair is")
    assert f"{HEAD}: rank 0 runs, container {NAME}" in status
    assert "2922496 of 2922496 tokens free" in status


def test_the_recorded_start_is_made_again_without_ansible_as_the_same_containers(sparks: Sparks) -> None:
    before = sparks.containers()
    keepers = []
    for host, daemon in sparks.daemons.items():
        state_dir = str(sparks.state_dir(host))
        os.makedirs(_autostart_files.place(state_dir))
        config = {"state_dir": state_dir, "docker_host": daemon.socket, "stop_timeout": 5, "log_keep": 10}
        keepers.append(Keeper(config))
    seen = [keeper.look(watch=True) for keeper in keepers]
    assert [(one["running"], one["own"], one["lacks"]) for one in seen] == [(True, True, [])] * 2
    saved = [len(sparks.saved(host)) for host in sparks.daemons]
    head, worker = keepers
    # As after a reboot: nothing is there, and the compiler that was killed has left its lock.
    assert [worker.stop(), head.stop()] == ["", ""]
    assert [daemon.names() for daemon in sparks.daemons.values()] == [[], []]
    assert [len(sparks.saved(host)) for host in sparks.daemons] == [count + 1 for count in saved]
    kernels = sparks.home / f"{WORKER}-kernels" / PATCHES
    (kernels / "extension" / "lock").touch()
    assert [worker.look(watch=True)["lacks"], head.look(watch=True)["lacks"]] == [[], []]
    pair = seen[0]["pair"]
    assert [worker.start(pair), head.start(pair)] == ["", ""]
    assert not (kernels / "extension" / "lock").exists()
    after = sparks.containers()
    for host, was in before.items():
        now = after[host]
        for name in ("Cmd", "Labels", "User", "Entrypoint"):
            assert now["Config"][name] == was["Config"][name]
        for name in ("NetworkMode", "IpcMode", "ShmSize", "Devices", "RestartPolicy"):
            assert now["HostConfig"][name] == was["HostConfig"][name]
        # Docker's client and the collection's module write the same capability and GPU a little differently.
        assert now["HostConfig"]["CapAdd"] == [f"CAP_{name}" for name in was["HostConfig"]["CapAdd"]]
        (gpus,), (gpus_before,) = now["HostConfig"]["DeviceRequests"], was["HostConfig"]["DeviceRequests"]
        assert [gpus[name] for name in ("Count", "Capabilities")] == [gpus_before[n] for n in ("Count", "Capabilities")]
        assert sorted(now["Config"]["Env"]) == sorted(was["Config"]["Env"])
        assert sorted(now["HostConfig"]["Ulimits"], key=str) == sorted(was["HostConfig"]["Ulimits"], key=str)
        shown = ("Type", "Source", "Destination", "RW")
        assert [
            [mount[name] for name in shown] for mount in sorted(now["Mounts"], key=lambda one: one["Destination"])
        ] == [[mount[name] for name in shown] for mount in sorted(was["Mounts"], key=lambda one: one["Destination"])]
        assert now["Image"] == was["Image"]
    # What it started is what the inventory asks for; the run waits until it serves.
    again = sparks.run("site")
    assert (again.returncode, again.changed) == (0, 0), again.output
    # An image that has gone is waited for, and never replaced by another one.
    kept = head.record()
    assert kept is not None
    sparks.daemons[HEAD].run("image", "rm", kept["kept"])
    worker.stop()
    head.stop()
    assert "is gone from Docker" in head.look(watch=True)["lacks"][0]
    sparks.daemons[HEAD].run("tag", IMAGE, kept["kept"])
    shutil.rmtree(_autostart_files.place(str(sparks.state_dir(HEAD))))
    shutil.rmtree(_autostart_files.place(str(sparks.state_dir(WORKER))))


def test_a_rollback_brings_image_and_settings_of_the_start_before_back_without_a_network(
    sparks: Sparks, tmp_path: Path
) -> None:
    before = {host: daemon.inspect(IMAGE)["Id"] for host, daemon in sparks.daemons.items()}
    make_image(sparks.daemons[HEAD], tmp_path / "image", patches="ff5dffc865d3", more="ENV LATER=yes")
    sparks.converge(release="v1.9.1", served_name="later")
    assert all("LATER=yes" in seen["Config"]["Env"] for seen in sparks.containers().values())
    back = sparks.run("rollback", release="v1.9.1", served_name="later")
    assert back.returncode == 0, back.output
    assert "model     GLM-5.3-Flash-EXL3" in back.told("Say how the pair serves")
    assert {host: seen["Image"] for host, seen in sparks.containers().items()} == before


def test_a_purge_asks_first_and_then_undoes_what_was_made_and_nothing_else(sparks: Sparks) -> None:
    others = sparks.daemons[HEAD]
    others.run("run", "--detach", "--name", "other", "--network", "host", BASE, "sleep", "600")
    refused = sparks.run("purge")
    assert f"this removes {sparks.home}/{HEAD}-kernels/{PATCHES}" in refused.failure()
    assert "sparkpair_purge_consent=true" in refused.failure()
    assert sparks.containers()[HEAD]["State"]["Running"]
    purged = sparks.run("purge", purge_consent=True)
    assert purged.returncode == 0, purged.output
    assert [daemon.names() for daemon in sparks.daemons.values()] == [["other"], []]
    for host, daemon in sparks.daemons.items():
        assert not sparks.state_dir(host).exists()
        assert not (sparks.home / f"{host}-kernels" / PATCHES).exists()
        assert (sparks.home / f"{host}-cache" / "hub").is_dir()
        assert "kept-" not in daemon.run("images").stdout
    # The head's image was there before, the worker's was brought.
    assert others.run("image", "inspect", IMAGE, check=False).returncode == 0
    assert sparks.daemons[WORKER].run("image", "inspect", IMAGE, check=False).returncode != 0
    again = sparks.run("teardown")
    assert (again.returncode, again.changed) == (0, 0), again.output
