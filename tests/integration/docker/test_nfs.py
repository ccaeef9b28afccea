# SPDX-License-Identifier: Apache-2.0
"""The head's export and the worker's volume, as far as a machine without an NFS kernel can have them.

A mount that works needs two machines whose kernels speak NFS; here a mount is refused for real, and what would be seen
through one is a directory of this machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _container_host, _nfs
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker
from ansible_collections.sparkpair.serving.plugins.modules import nfs_volume

from tests.integration.docker.daemons import BASE, Daemon
from tests.integration.hub.hosts import REPO, Host, checkpoint
from tests.integration.hub.hub import COMMIT
from tests.integration.plays import play
from tests.integration.site import HEAD, WORKER

ROLE = Path(__file__).resolve().parents[3] / "roles" / "nfs_export"
VOLUME = "sparkpair-test-hf"


@pytest.mark.parametrize(
    ("nfs_path", "options"), [("", "ro,no_subtree_check"), ("/", "ro,no_subtree_check,fsid=0")], ids=["usual", "root"]
)
def test_the_export_is_read_only_and_for_the_other_hosts_alone(tmp_path: Path, nfs_path: str, options: str) -> None:
    own = {"nfs_path": nfs_path, "nfs_server": "", "nfs_export": True}
    addresses = {HEAD: "192.0.2.1", WORKER: "192.0.2.2", "spark-third": "192.0.2.3"}
    common = {
        "__settings_resolved": {"settings": own},
        "__roce_link_addresses": {
            "link": {"nodes": {host: {"address": address} for host, address in addresses.items()}}
        },
        "__preflight_probe": {"probe": {"hf_cache": "/home/spark/my cache"}},
    }
    made = tmp_path / "made.exports"
    source = ROLE / "templates" / "etc" / "exports.d" / "sparkpair.exports.j2"
    tasks = [
        {"include_vars": str(ROLE / "vars" / "main.yml")},
        {"template": {"src": str(source), "dest": str(made)}, "when": "inventory_hostname in groups['head']"},
    ]
    groups = {"head": [HEAD], "workers": [WORKER, "spark-third"]}
    done = play(tmp_path, tasks, hosts=dict.fromkeys(addresses, common), groups=groups)
    assert done.returncode == 0, done.output
    first, second = made.read_text().splitlines()
    assert first.startswith("# Written by sparkpair.serving.nfs_export")
    assert second == f'"/home/spark/my cache" 192.0.2.2({options}) 192.0.2.3({options})'


@pytest.fixture
def worker(clean: list[Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host with a Docker of its own, and the client that came with it."""
    daemon = clean[1]
    monkeypatch.setenv("PATH", f"{daemon.programs}:{os.environ['PATH']}")
    yield daemon
    daemon.run("volume", "rm", "--force", VOLUME)


def arguments(daemon: Daemon, **more: Any) -> dict[str, Any]:
    return {
        "name": VOLUME,
        "server": "127.0.0.1",
        "path": "/srv/hf",
        "image": BASE,
        "docker_host": daemon.socket,
        "cache": None,
        "state_dir": None,
        **more,
    }


def run(host: Host, daemon: Daemon, **more: Any) -> dict[str, Any]:
    own = {**arguments(daemon), **more}
    environment = {"PATH": os.environ["PATH"]}
    result = host.run("nfs_volume", environment=environment, **own)
    return result


def test_a_volume_of_that_name_that_is_another_is_never_replaced(worker: Daemon, tmp_path: Path) -> None:
    host = Host(tmp_path)
    theirs = _nfs.volume_options("192.0.2.9", "/srv/other")
    options = [word for name, value in theirs.items() for word in ("--opt", f"{name}={value}")]
    worker.run("volume", "create", *options, VOLUME)
    refused = run(host, worker)
    assert f"there is a volume {VOLUME} already, and its path :/srv/other instead of :/srv/hf" in refused["msg"]
    assert "addr=192.0.2.9" in refused["msg"]
    assert worker.inspect(VOLUME)["Options"] == theirs


def test_a_mount_that_is_refused_is_told_with_server_path_and_where_to_look(worker: Daemon, tmp_path: Path) -> None:
    host = Host(tmp_path)
    checked = run(host, worker, _ansible_check_mode=True)
    assert checked["changed"] is True, checked
    assert worker.run("volume", "inspect", VOLUME, check=False).returncode != 0
    refused = run(host, worker)
    assert f"127.0.0.1:/srv/hf cannot be mounted as the volume {VOLUME}: " in refused["msg"]
    assert "See `exportfs -v` on the head" in refused["msg"]
    assert worker.inspect(VOLUME)["Options"] == _nfs.volume_options("127.0.0.1", "/srv/hf")


def test_a_second_run_finds_the_volume_as_it_was_compared_and_only_then(worker: Daemon, tmp_path: Path) -> None:
    def seen() -> Any:
        return _container_host.look(worker.socket, str(tmp_path), BASE, VOLUME)["volume"]

    def make(server: str) -> None:
        options = _nfs.volume_options(server, "/srv/hf")
        given = [word for name, value in options.items() for word in ("--opt", f"{name}={value}")]
        worker.run("volume", "create", *given, VOLUME)

    assert seen() is None
    make("192.0.2.1")
    assert seen() is None
    _nfs.remember(str(tmp_path), VOLUME, "192.0.2.1", "/srv/hf", ["d1"])
    assert seen() == {"server": "192.0.2.1", "path": "/srv/hf", "digests": ["d1"]}
    worker.run("volume", "rm", VOLUME)
    assert seen() is None
    make("192.0.2.9")
    assert seen() is None


def test_what_is_seen_through_the_volume_is_compared_with_the_head_file_by_file(worker: Daemon, tmp_path: Path) -> None:
    head = Host(tmp_path / "head")
    files = head.hold(checkpoint())
    seen = tmp_path / "seen"
    shutil.copytree(head.cache, seen, symlinks=True)
    bind = ["--opt", "type=none", "--opt", "o=bind", "--opt", f"device={seen}"]
    worker.run("volume", "create", *bind, VOLUME)
    docker = Docker(worker.socket)
    wanted = arguments(worker, snapshots=[{"repo": REPO, "revision": COMMIT, "files": files}])
    nfs_volume.mounted(docker, wanted)
    nfs_volume.compare(docker, wanted)
    place = seen / "hub" / f"models--{REPO.replace('/', '--')}" / "snapshots" / COMMIT
    os.truncate((place / "model-1.safetensors").resolve(), 7)
    (place / "README.md").unlink()
    with pytest.raises(nfs_volume.VolumeError, match=r"README\.md is missing; model-1\.safetensors is cut off: 7 "):
        nfs_volume.compare(docker, wanted)
