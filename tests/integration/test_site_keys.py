# SPDX-License-Identifier: Apache-2.0
"""A pair with API keys: every probe has one, nobody sees one, and a rotation restarts nothing.

Its machine has a hosts file as Debian writes it, where the own name leads to 127.0.1.1: no rank may wait there.
"""

from __future__ import annotations

import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.site import HEAD, Site, lend_checkpoint

OLD, NEW = "sk-old-4711", "sk-new-0815"


@pytest.fixture(scope="module")
def pair(miniature: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A pair on a machine with such a hosts file, where this account may give a process one."""
    home = tmp_path_factory.mktemp("keys-pair")
    hosts = home / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n")
    private = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    may = subprocess.run([*private, "true"], capture_output=True, check=False).returncode == 0
    site = Site(home / "site", prefix=private if may else ())
    lend_checkpoint(miniature, site)
    yield site
    site.run("teardown")


def models(pair: Site, key: str | None) -> int:
    """The status of a request for the models."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"http://127.0.0.1:{pair.port}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def write(path: Path, key: str, mode: int = 0o600) -> None:
    new = path.with_suffix(".new")
    new.write_text(f"# keys\nprobe: {key}\n")
    new.chmod(mode)
    new.replace(path)


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    write(path, OLD)
    return path


def test_a_pair_with_keys_comes_up_and_tells_nobody(pair: Site, key_file: Path) -> None:
    run = pair.run("site", "--diff", "-vvv", api_key_file=str(key_file))
    assert run.returncode == 0, run.output
    assert run.told("Say how the pair serves").startswith("LIVE")
    if pair.prefix:
        assert run.result("Look at the host")["probe"]["own_addresses"] == ["127.0.1.1"]
    assert (models(pair, OLD), models(pair, None), models(pair, "other")) == (200, 401, 401)
    status = pair.run("status", "-vvv", api_key_file=str(key_file))
    assert f"endpoint http://127.0.0.1:{pair.port}/v1: ready, model " in status.told("Say how the pair is")
    kept = [path.read_bytes() for path in pair.home.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    for place in (run.output, status.output, *map(str, kept)):
        assert OLD not in place
    commands = [(Path("/proc") / str(pid) / "cmdline").read_bytes() for pid in pair.pids()]
    assert str(key_file).encode() in commands[0]
    assert not any(OLD.encode() in command for command in commands)


def test_a_rotation_restarts_nothing(pair: Site, key_file: Path) -> None:
    before = pair.pids()
    write(key_file, NEW)
    run = pair.converge(api_key_file=str(key_file))
    assert (run.changed, pair.pids()) == (0, before)
    assert (models(pair, NEW), models(pair, OLD)) == (200, 401)


def test_a_key_file_that_others_may_read_is_refused_and_the_pair_left_alone(pair: Site, key_file: Path) -> None:
    before = pair.pids()
    loose = key_file.with_name("loose")
    write(loose, OLD, 0o644)
    run = pair.run("site", api_key_file=str(loose))
    assert run.returncode != 0
    assert f"{HEAD}: the key file {loose} has mode 0644" in run.failure()
    assert OLD not in run.output
    assert pair.pids() == before
