# SPDX-License-Identifier: Apache-2.0
"""A program that is not installed is named, with what it is for and what to do: never a bare failure or a trace."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _docker_cli,
    _hub_cache,
    _hub_download,
    _image_build,
    _image_stream,
    _machine_findings,
    _roce_host,
    _way_back,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot
from ansible_collections.sparkpair.serving.plugins.modules import nfs_volume

from tests.unit.plugins.module_utils.test_machine_findings import SOUND


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    # Programs of the system's own directories are looked for there whatever the path is.
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path=None: which(name) if path is None else None)


def download(place: Path) -> None:
    snapshot = Snapshot(str(place / "cache"), str(place / "state"), "org/model", "f" * 40)
    expected = [{"path": "config.json", "size": 2, "blob": "a" * 40}]
    (place / "cache" / _hub_cache.repository("", "org/model").lstrip("/")).mkdir(parents=True)
    _hub_download._download(snapshot, ["/nowhere/python"], "http://127.0.0.1:9", "", expected, lambda progress: None)


CALLS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "docker": (
        lambda place: _docker_cli.Docker("unix:///d").run("info"),
        "there is no program docker on this host: in",
    ),
    "docker for nfs": (
        lambda place: nfs_volume.existing(_docker_cli.Docker("unix:///d"), "weights"),
        "there is no program docker on this host: install Docker",
    ),
    "ip": (lambda place: _roce_host.look(str(place), []), "no program ip on this host, .* install iproute2"),
    "ping": (
        lambda place: _roce_host.ping_all([{"netdev": "lo", "address": "127.0.0.1", "size": 56}]),
        "no program ping on this host, .* install iputils-ping",
    ),
    "git": (
        lambda place: _image_build.fetch("https://example.org/x.git", "v1", str(place / "x")),
        "no program git on this host, with which the engine's source is fetched: install git",
    ),
    "ssh": (
        lambda place: _image_stream.Remote(["ssh", "b", "docker"]).ask("info"),
        "no program ssh on this host, with which the image is sent: install it",
    ),
    "python of the hub": (download, "/nowhere/python, which is to download .* sparkpair_hub_command"),
}


@pytest.mark.parametrize("name", CALLS)
def test_s08_whatever_is_called_and_not_there_is_named_with_its_use_and_the_remedy(name: str, tmp_path: Path) -> None:
    call, words = CALLS[name]
    with pytest.raises(Exception, match=words) as caught:
        call(tmp_path)
    # Every module tells errors of these kinds as they are.
    assert isinstance(
        caught.value,
        (_docker_cli.DockerError, _roce_host.MissingTool, _image_build.BuildError, _hub_download.JobError),
    )


def test_s08_netplan_that_is_not_there_is_said_by_what_applies_the_link() -> None:
    assert _way_back.apply(["netplan", "apply"]) == "there is no program netplan on this host"


@pytest.mark.parametrize(
    ("part", "remedy"),
    [("docker", "install Docker"), ("gpu", "install NVIDIA's driver"), ("ssh", "install openssh-client")],
)
def test_s08_the_remedy_for_a_missing_program_is_not_to_look_with_it(part: str, remedy: str) -> None:
    machine = copy.deepcopy(SOUND)
    target = machine["ssh"][0] if part == "ssh" else machine[part]
    target["error"] = "there is no program of that name on this host"
    found = _machine_findings.judge({"a": machine}, {"a": _machine_findings.Needs()})
    assert [one.remedy for one in found if one.id == part] == [
        next(one.remedy for one in found if one.remedy.startswith(remedy))
    ]


def test_s08_a_source_that_takes_for_ever_is_named_and_no_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(_image_build, "_GIT_LIMIT_S", 0.0001)
    with pytest.raises(_image_build.BuildError, match=r"v1 of https://example\.org/x\.git was not fetched within"):
        _image_build.fetch("https://example.org/x.git", "v1", str(tmp_path / "x"))


def test_a_server_that_does_not_answer_is_told_from_a_docker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = _docker_cli.Docker("unix:///d")

    def late(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("docker", 1)

    monkeypatch.setattr(_docker_cli.Docker, "command", lambda self, *words: ["docker", *words])
    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(nfs_volume.VolumeError, match="the NFS server did not answer"):
        nfs_volume.existing(docker, "weights")
