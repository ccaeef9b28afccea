# SPDX-License-Identifier: Apache-2.0
"""TensorFold's adapter on two machines up to the program: two rails, the image and the weights over the cable, NFS."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.docker.sparks import IMAGE, MODEL, NAME
from tests.integration.site import HEAD, WORKER, Run
from tests.pair import faults, machines, plays
from tests.pair.machines import Machine

TENSORFOLD: dict[str, Any] = {"inventory": "pair_tensorfold"}
# Once the link has its addresses, nothing more is to be done about them.
SETTLED: dict[str, Any] = {**TENSORFOLD, "manage_link": False}
SNAPSHOT = f"~/.cache/huggingface/hub/models--{MODEL[0].replace('/', '--')}/snapshots/{MODEL[1]}"
TWIN = {HEAD: "enP2p1s0f0np0", WORKER: "enP2p1s0f1np1"}
LINK = {HEAD: "enp1s0f0np0", WORKER: "enp1s0f1np1"}


@pytest.fixture(scope="module")
def pair() -> dict[str, Machine]:
    """The machines that run, of which only the head has the image and the weights."""
    return machines.attach()


def rails(run: Run) -> list[list[str]]:
    """The RDMA devices that each host's rank uses, by a run's decision."""
    nodes = run.result("Decide the addresses of the pair")["link"]["nodes"]
    return [nodes[host]["devices"] for host in (HEAD, WORKER)]


def looked() -> Run:
    """What a run would find and decide; nothing is changed."""
    return plays.run("preflight", **SETTLED)


def digest(machine: Machine) -> str:
    return machine.run(f"cat {SNAPSHOT}/* | sha256sum").stdout


def received(machine: Machine, port: str) -> int:
    """How many bytes have come in by a port."""
    return int(machine.run(f"cat /sys/class/net/{port}/statistics/rx_bytes").stdout)


def test_image_and_weights_go_over_the_cable_and_both_rails_are_used(pair: dict[str, Machine]) -> None:
    before = received(pair[WORKER], LINK[WORKER])
    run = plays.live(**TENSORFOLD)
    assert rails(run) == [["rocep1s0f0", "roceP2p1s0f0"], ["rocep1s0f1", "roceP2p1s0f1"]]
    nodes = run.result("Decide the addresses of the pair")["link"]["nodes"]
    assert [(nodes[host]["gid_index"], nodes[host]["mtu"]) for host in (HEAD, WORKER)] == [(1, 9000), (3, 9000)]
    sent = run.result("Send the image to the workers")["results"][0]["sent"]["bytes"]
    assert received(pair[WORKER], LINK[WORKER]) - before > sent > 0
    layers = "docker image inspect --format '{{.RootFS.Layers}}' " + IMAGE
    assert pair[HEAD].run(layers).stdout == pair[WORKER].run(layers).stdout
    assert digest(pair[HEAD]) == digest(pair[WORKER])
    for machine in pair.values():
        seen = machine.run(f"docker exec {NAME} python3 -c 'import resource; print(resource.getrlimit(8))'").stdout
        assert seen.strip() == "(-1, -1)"
        assert "uverbs1" in machine.run(f"docker exec {NAME} ls /dev/infiniband").stdout
    again = plays.run("site", **TENSORFOLD)
    assert (again.returncode, again.changed) == (0, 0), plays.complaints(again)


def test_a_twin_that_is_unaddressed_or_has_another_mtu_or_no_cable_is_left_out_on_both(
    pair: dict[str, Machine],
) -> None:
    one = [["rocep1s0f0"], ["rocep1s0f1"]]
    worker, twin = pair[WORKER], TWIN[WORKER]
    worker.run(f"sudo ip link set {twin} mtu 1500")
    found = looked()
    worker.run(f"sudo ip link set {twin} mtu 9000")
    with faults.unplug(worker, twin):
        unplugged = looked()
    worker.run(f"sudo ip address flush dev {twin} scope global")
    bare = looked()
    worker.run("sudo netplan apply")
    assert [rails(run) for run in (found, unplugged, bare)] == [one, one, one]
    unaddressed = "is up and has no IPv4 address"
    assert unaddressed in bare.output
    # A port without a cable has lost its address, too; it is the other end that is told.
    assert "has no partner in its subnet" in unplugged.output
    assert unaddressed not in unplugged.output


def test_a_link_that_loses_everything_is_refused_and_what_serves_goes_on(pair: dict[str, Machine]) -> None:
    with faults.drop(pair[WORKER], LINK[WORKER]):
        refused = plays.run("site", **SETTLED, max_tokens=4096)
    assert refused.returncode != 0
    assert "a ping of 8972 bytes that may not be fragmented is lost between rocep1s0f0" in refused.failure()
    assert plays.run("site", **SETTLED).changed == 0


def test_a_full_disk_a_corrupt_file_and_a_dead_rank_are_told_and_the_next_run_ends_live(
    pair: dict[str, Machine],
) -> None:
    head, worker = pair[HEAD], pair[WORKER]
    wanted = digest(head)
    faults.crash(worker, NAME)
    head.run(f"docker wait {NAME}")
    assert f"{WORKER}: rank 1 ended by signal 9" in plays.run("status", **SETTLED).told("Say how the pair is")
    faults.corrupt(worker, f"{SNAPSHOT}/model.safetensors")
    worker.run(f"rm {SNAPSHOT}/config.json")
    with faults.fill(worker, "/home", leave_mib=4):
        full = plays.run("site", **SETTLED)
    assert full.returncode != 0
    assert "are free on the disk of /home/spark/.cache" in full.failure()
    with faults.steal(head, 8888):
        taken = plays.run("site", **SETTLED)
    assert taken.returncode != 0
    assert "8888" in taken.failure()
    plays.live(**SETTLED)
    assert digest(worker) == wanted


def test_the_worker_serves_the_weights_of_the_head_over_nfs_and_a_second_run_changes_nothing(
    pair: dict[str, Machine],
) -> None:
    settings = {**SETTLED, "worker_weights": "nfs"}
    plays.live(**settings)
    inside = pair[WORKER].run(f"docker exec {NAME} cat /proc/mounts").stdout
    (mount,) = [line for line in inside.splitlines() if " nfs4 " in line]
    assert mount.startswith(":/home/spark/.cache/huggingface ")
    assert {"ro", "addr=192.168.100.10"} <= set(mount.split()[3].split(","))
    again = plays.run("site", **settings)
    assert (again.returncode, again.changed) == (0, 0), plays.complaints(again)
