# SPDX-License-Identifier: Apache-2.0
"""Ranks as containers on two real Docker daemons: started, watched, replaced and stopped, and nothing else touched."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _container
from ansible_collections.sparkpair.serving.plugins.module_utils._spec import spec_hash

from tests.integration.docker.daemons import BASE, Daemon
from tests.integration.plays import Played, play
from tests.integration.site import free_ports

HOSTS = ("head", "worker")
IMAGE = "sparkpair-stand-in:1"
STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture(scope="module")
def image(daemons: list[Daemon], tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image whose program is the stand-in, with an entry point and a command of its own, on both daemons."""
    context = tmp_path_factory.mktemp("image")
    (context / "stand_in.py").write_text(STAND_IN.read_text())
    (context / "Dockerfile").write_text(
        f"FROM {BASE}\n"
        "COPY stand_in.py /stand_in.py\n"
        'ENTRYPOINT ["/usr/bin/python3", "/stand_in.py"]\n'
        'CMD ["--help"]\n'
        "ENV BAKED=yes\n"
    )
    for daemon in daemons:
        daemon.run("build", "--network", "none", "--tag", IMAGE, str(context))
    return IMAGE


class Pair:
    """A head and a worker, each with its own daemon; `tasks` are those of the role."""

    def __init__(self, home: Path, daemons: list[Daemon], image: str) -> None:
        self.home = home
        self.daemons = dict(zip(HOSTS, daemons, strict=True))
        self.image = image
        self.port, self.master_port = free_ports(2)
        self.faults = dict.fromkeys(HOSTS, "")
        self.env: dict[str, Any] = {}
        (home / "models" / "x").mkdir(parents=True)

    def document(self, host: str) -> dict[str, Any]:
        rank = HOSTS.index(host)
        argv = ["serve", "/models/x", "--tp", "2", "--rank", str(rank)]
        argv += ["--master", "127.0.0.1", "--master-port", str(self.master_port), "--fault", self.faults[host]]
        result = {
            "name": "stand-in",
            "rank": rank,
            "world_size": 2,
            "image": self.image,
            "argv": [*argv, "--port", str(self.port)] if rank == 0 else argv,
            "env": self.env,
            "mounts": [
                {"type": "bind", "source": f"{self.home}/{host}/cache", "target": "/cache", "mode": "rw"},
                {"type": "bind", "source": f"{self.home}/models", "target": "/models", "mode": "ro"},
            ],
            "devices": [],
            "gpus": "",
            "capabilities": ["IPC_LOCK"],
            "ulimits": {"stack": 67108864},
            "shm_size": "16m",
            "network": "host",
            "ipc": "private",
        }
        return {**result, "ready_url": f"http://127.0.0.1:{self.port}/v1/models"} if rank == 0 else result

    def specs(self, host: str) -> dict[str, Any]:
        """What rank_specs registers."""
        document, owner = self.document(host), str(self.home / host)
        check = [*document["argv"], "--check-args"]
        docker = self.daemons[host].socket
        return {
            "rank": document["rank"],
            "name": f"rank{document['rank']}",
            "log_dir": f"{owner}/logs",
            "spec": document,
            "checkable": True,
            "image_present": True,
            "container": _container.for_rank(document, owner, docker, spec_hash(document), check),
        }

    def play(self, *tasks: dict[str, Any], arguments: tuple[str, ...] = ()) -> Played:
        """Play tasks on both hosts; the first failure ends the run, as in site.yml."""
        settings = {"stop_timeout": 2, "log_keep": 10, "container_name": "stand-in", "engine": "sparkpair"}
        hosts = {
            host: {
                "__rank_specs": self.specs(host),
                "__settings_resolved": {"settings": {**settings, "docker_host": self.daemons[host].socket}},
                "__preflight_probe": {
                    "probe": {"state_dir": str(self.home / host), "ranks": [], "autostart": {"supervisor": None}}
                },
                "__preflight_report": {"ports": {"port": 0, "master_port": 0, "to_remember": False}},
            }
            for host in HOSTS
        }
        return play(self.home, tasks, *arguments, hosts=hosts, forgiving=False)

    def converge(self, *arguments: str, transport: str = "") -> Played:
        return self.play(role("container.yml"), self.wait(transport), arguments=arguments)

    def wait(self, transport: str = "") -> dict[str, Any]:
        container = "{{ {'name': __rank_specs.spec.name, 'owner': __rank_specs.container.owner, "
        container += "'docker_host': __rank_specs.container.docker_host} }}"
        options = {
            "rank": "{{ __rank_specs.rank }}",
            "world_size": 2,
            "container": container,
            "ready_url": "{{ __rank_specs.spec.ready_url | default(omit) }}",
            "timeout": 40,
        }
        return {"sparkpair.serving.await_live": {**options, **({"transport": transport} if transport else {})}}

    def info(self, host: str = "head", **options: Any) -> dict[str, Any]:
        common = {"name": "stand-in", "owner": str(self.home / host), "docker_host": self.daemons[host].socket}
        return play(self.home, [{"sparkpair.serving.rank_container_info": {**common, **options}}]).one()

    def saved(self, host: str) -> list[str]:
        places = sorted((self.home / host / "logs").glob("*.log.gz"))
        return [gzip.decompress(place.read_bytes()).decode() for place in places]


def role(tasks: str) -> dict[str, Any]:
    return {"import_role": {"name": "sparkpair.serving.rank", "tasks_from": tasks}}


@pytest.fixture
def pair(clean: list[Daemon], image: str, tmp_path: Path) -> Iterator[Pair]:
    return Pair(tmp_path, clean, image)


def succeeded(played: Played) -> Played:
    """A run in which no task failed."""
    failed = [result for task in played.results for result in task.values() if result.get("failed")]
    assert not failed, json.dumps(failed, indent=1)
    return played


def failure(played: Played, host: str = "head") -> str:
    return next(str(task[host]["msg"]) for task in played.results if task.get(host, {}).get("failed"))


STOP = (role("stop_pair.yml"),)


def test_a_pair_of_containers_lives_by_its_contract(pair: Pair) -> None:
    pair.env = {"NUMBER": 1, "TRUTH": True}
    checked = succeeded(pair.converge("--check"))
    assert any(result.get("changed") for task in checked.results for result in task.values())
    assert [daemon.names() for daemon in pair.daemons.values()] == [[], []]

    live = succeeded(pair.converge(transport="ib"))
    assert live.results[-1]["head"]["verdict"] == "live"
    for host in HOSTS:
        seen = pair.daemons[host].inspect("stand-in")
        own = seen["HostConfig"]
        assert (own["NetworkMode"], own["RestartPolicy"]["Name"], own["AutoRemove"]) == ("host", "no", False)
        assert (own["Privileged"], own["CapAdd"], own["ShmSize"]) == (False, ["IPC_LOCK"], 16 << 20)
        assert own["Ulimits"] == [{"Name": "stack", "Hard": 67108864, "Soft": 67108864}]
        assert seen["Config"]["Cmd"] == pair.document(host)["argv"]
        assert seen["Config"]["Entrypoint"] == ["/usr/bin/python3", "/stand_in.py"]
        # What Docker keeps as text was text before, or it would differ from itself for ever.
        assert {"NUMBER=1", "TRUTH=True", "BAKED=yes"} <= set(seen["Config"]["Env"])
        assert seen["Config"]["Labels"]["sparkpair.spec-hash"] == spec_hash(pair.document(host))
    info = pair.info(ready_url=pair.document("head")["ready_url"])
    assert (info["running"], info["ready"], info["state"]) == (True, True, "running")
    assert info["spec_hash"] == spec_hash(pair.document("head"))
    assert info["rss_bytes"] > 1 << 20
    assert info["anchors"]["serving_url"] == f"http://127.0.0.1:{pair.port}"

    # A mistake in the arguments leaves what runs alone.
    before = {host: pair.daemons[host].inspect("stand-in")["Id"] for host in HOSTS}
    pair.faults["head"] = "argument"
    message = failure(pair.converge())
    assert (
        "head: the engine refuses the arguments of rank0 (exit code 2): --fault argument cannot be served." in message
    )
    assert "What ran before runs on" in message
    for host in HOSTS:
        assert pair.daemons[host].names() == ["stand-in"]
        seen = pair.daemons[host].inspect("stand-in")
        assert (seen["Id"], seen["State"]["Running"]) == (before[host], True)


def test_a01_a02_a_container_does_not_differ_from_itself_for_its_images_command_or_for_numbers(pair: Pair) -> None:
    """The image has an entry point, a command and variables of its own, the rank numbers where Docker keeps text."""
    pair.env = {"NUMBER": 1, "TRUTH": True, "BAKED": "yes"}
    start = role("start_container.yml")
    succeeded(pair.play(start))
    before = [pair.daemons[host].inspect("stand-in")["Id"] for host in HOSTS]
    again = succeeded(pair.play(start))
    assert not [result for task in again.results for result in task.values() if result.get("changed")]
    assert [pair.daemons[host].inspect("stand-in")["Id"] for host in HOSTS] == before


def test_o08_the_log_of_a_rank_that_crashed_is_shown_and_saved_before_it_is_removed(pair: Pair) -> None:
    pair.faults["worker"] = "crash"
    message = failure(pair.converge())
    assert "rank 1 on worker ended with exit code 7" in message
    assert "error: going down" in message
    succeeded(pair.play(*STOP))
    for host in HOSTS:
        assert pair.daemons[host].names() == []
        (log,) = pair.saved(host)
        assert log.startswith(f"# rank{HOSTS.index(host)}, container stand-in, started ")
    assert "ended with exit code 7" in log.splitlines()[0]
    assert "error: going down" in log
    # Every line has its time.
    assert log.splitlines()[1][:4].isdigit()


def test_n11_a_fall_back_to_sockets_fails_and_a_rank_that_does_not_end_in_time_is_killed(pair: Pair) -> None:
    other = pair.daemons["worker"]
    other.run("run", "--detach", "--name", "other", "--network", "host", BASE, "sleep", "600")
    pair.faults = {"head": "socket", "worker": "deaf"}
    message = failure(pair.converge(transport="ib"))
    assert "NCCL fell back to TCP sockets on rank 0 on head" in message
    assert "NCCL_IB_HCA" in message
    succeeded(pair.play(*STOP))
    assert pair.daemons["head"].names() == []
    assert other.names() == ["other"]
    (log,) = pair.saved("worker")
    assert "ended by signal 9" in log.splitlines()[0]
    # Nothing is left to do.
    again = succeeded(pair.play(*STOP))
    assert not any(result.get("changed") for task in again.results for result in task.values())


def test_a_container_of_somebody_else_with_the_ranks_name_is_refused_and_never_touched(pair: Pair) -> None:
    other = pair.daemons["worker"]
    other.run("run", "--detach", "--name", "stand-in", "--network", "host", BASE, "sleep", "600")
    before = other.inspect("stand-in")["Id"]
    message = failure(pair.play(role("container.yml")), "worker")
    assert "a container named stand-in exists on this host and does not belong to this pair" in message
    assert "docker rename stand-in NEW" in message
    seen = other.inspect("stand-in")
    assert (seen["Id"], seen["State"]["Running"]) == (before, True)
    assert not (pair.home / "worker" / "logs").exists()


def probe(pair: Pair, host: str, docker_host: str) -> dict[str, Any]:
    """What pair_probe finds of a host's machine."""
    options = {"state_dir": str(pair.home / host), "engine_command": ["true"], "address": "127.0.0.1"}
    return play(
        pair.home, [{"sparkpair.serving.pair_probe": {**options, "machine": {"docker_host": docker_host}}}]
    ).one()


def test_a_machine_is_looked_at_through_its_real_daemon(pair: Pair) -> None:
    daemon = pair.daemons["head"]
    daemon.run("create", "--name", "asleep", "--restart", "always", "--runtime", "runc", BASE, "sleep", "600")
    seen = probe(pair, "head", daemon.socket)["probe"]["machine"]["docker"]
    assert (seen["error"], seen["image_store"]) == ("", "classic")
    assert seen["root"] == f"{daemon.home}/data"
    assert seen["free_bytes"] > 0
    assert "runc" in seen["runtimes"]
    (one,) = seen["containers"]
    assert (one["name"], one["running"], one["restart"], one["gpu"]) == ("asleep", False, "always", False)
    gone = probe(pair, "head", "unix:///nowhere/docker.sock")["probe"]["machine"]["docker"]
    assert "Cannot connect to the Docker daemon" in gone["error"]
