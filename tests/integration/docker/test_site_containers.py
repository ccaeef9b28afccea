# SPDX-License-Identifier: Apache-2.0
"""The whole life of a pair in containers by the real playbooks: virgin, converged, changed, refitted, torn down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.docker.daemons import Daemon
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


def test_tensorfold_from_an_inventory_to_live_and_a_second_run_changes_nothing(sparks: Sparks) -> None:
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
    for arguments in ((), ("--check", "--diff")):
        again = sparks.run("site", *arguments)
        assert (again.returncode, again.changed) == (0, 0), again.output
    assert sparks.ids() == before


def test_only_a_change_replaces_the_ranks_and_a_check_of_it_replaces_none(sparks: Sparks) -> None:
    before = sparks.ids()
    checked = sparks.run("site", "--check", "--diff", max_tokens=4096)
    assert checked.returncode == 0, checked.output
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
    for host in (HEAD, WORKER):
        assert len(sparks.saved(host)) == 1


def test_m02_a_window_that_does_not_fit_is_refitted_once_and_not_kept(sparks: Sparks) -> None:
    sparks.settings = {"extra_env": {"STAND_IN_FITS": "524288"}}
    live = sparks.converge()
    assert "window    524288 tokens" in live.told("Say how the pair serves")
    argv = sparks.containers()[HEAD]["Config"]["Cmd"]
    assert argv[-2:] == ["--context", "524288"]
    assert argv[argv.index("--context") + 1] == "1048576"
    # What was asked for counts: nothing is to be changed until something else is asked for.
    assert sparks.run("site").changed == 0


def test_a_split_connection_that_fails_is_tried_again_and_then_left_out(sparks: Sparks) -> None:
    sparks.settings = {"extra_env": {"STAND_IN_NCCL": "9", "STAND_IN_FITS": "524288"}}
    live = sparks.converge()
    env = sparks.containers()[WORKER]["Config"]["Env"]
    assert {"TF_GLM_HC_SPLIT=0", "TF_GLM_PREFILL_OVERLAP=0"} <= set(env)
    # The refit before it is not forgotten.
    assert sparks.containers()[HEAD]["Config"]["Cmd"][-2:] == ["--context", "524288"]
    assert "sparkpair_split: false makes that permanent" in live.output


def test_a_pair_that_lost_a_rank_is_told_and_brought_back_whole(sparks: Sparks) -> None:
    sparks.settings = {}
    sparks.converge()
    sparks.daemons[WORKER].run("kill", NAME)
    sparks.daemons[HEAD].run("wait", NAME)
    status = sparks.run("status").told("Say how the pair is")
    assert f"{WORKER}: rank 1 ended by signal 9" in status
    before = sparks.ids()
    sparks.converge()
    assert not set(sparks.ids()) & set(before)
    assert "ended by signal 9" in sparks.saved(WORKER)[-1].splitlines()[0]
    status = sparks.run("status").told("Say how the pair is")
    assert f"{HEAD}: rank 0 runs, container {NAME}" in status
    assert "2922496 of 2922496 tokens free" in status


def test_a_teardown_leaves_no_container_and_keeps_logs_and_weights(sparks: Sparks) -> None:
    down = sparks.run("teardown")
    assert down.returncode == 0, down.output
    assert [daemon.names() for daemon in sparks.daemons.values()] == [[], []]
    again = sparks.run("teardown")
    assert (again.returncode, again.changed) == (0, 0), again.output
    assert sparks.saved(HEAD)
    assert (sparks.home / f"{HEAD}-cache" / "hub").is_dir()
