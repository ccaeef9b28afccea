# SPDX-License-Identifier: Apache-2.0
"""The playbook weights.yml on two hosts of this machine: the head downloads, the worker copies, nothing twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.hub.hosts import REPO, Host, checkpoint
from tests.integration.hub.hub import COMMIT, Hub, serving
from tests.integration.site import HEAD, WORKER, Run, Site

DRAFTER = "org/drafter"
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


class Pair(Site):
    """Two hosts with a cache each, and a hub."""

    def __init__(self, home: Path, hub: Hub) -> None:
        super().__init__(home)
        self.hub = hub
        self.hosts = {name: Host(home / name) for name in (HEAD, WORKER)}
        self.token = home / "token"
        self.token.touch(mode=0o600)
        self.token.write_text(TOKEN)
        local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
        settings = {
            "sparkpair_engine": "tensorfold",
            "sparkpair_fabric_address": "127.0.0.1",
            "sparkpair_hf_token_file": str(self.token),
            "sparkpair_hub_endpoint": hub.endpoint,
            "sparkpair_model_id": REPO,
            "sparkpair_model_revision": COMMIT,
            "sparkpair_drafter_id": DRAFTER,
            "sparkpair_drafter_revision": "",
        }
        groups = {
            group: {"hosts": {host: {"sparkpair_hf_cache": str(self.hosts[host].cache), **_daemon(host)}}}
            for group, host in (("head", HEAD), ("workers", WORKER))
        }
        self.inventory = home / "inventory.json"
        self.inventory.write_text(json.dumps({"sparks": {"vars": {**local, **settings}, "children": groups}}))

    def weights(self, *arguments: str, **settings: Any) -> Run:
        return self.run("weights", "-i", str(self.inventory), *arguments, **settings)

    def whole(self) -> None:
        """Both hosts must have exactly what the hub has."""
        for host in self.hosts.values():
            assert host.contents() == self.hub.repositories[REPO].files


def _daemon(host: str) -> dict[str, str]:
    """Nobody's Docker: the weights need none, and the ranks of two hosts need two."""
    return {"sparkpair_docker_host": f"unix:///nowhere/{host}.sock"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    drafter = checkpoint(size=1000)
    drafter.commit = "d" * 40
    with serving(Hub({REPO: checkpoint(), DRAFTER: drafter})) as hub:
        yield Pair(tmp_path_factory.mktemp("weights"), hub)


def test_a_refusal_of_the_hub_comes_first_with_its_remedy(pair: Pair) -> None:
    pair.hub.repositories[REPO].token, pair.hub.repositories[REPO].gated = "another", True
    refused = pair.weights()
    pair.hub.repositories[REPO].token = ""
    message = refused.failure()
    assert f"the Hub does not accept the token (401 for {REPO})" in message
    assert "sparkpair_hf_token_file" in message
    assert "nothing has been stopped or changed" in message
    assert not any(host.cache.exists() for host in pair.hosts.values())
    assert TOKEN not in refused.output


def test_a_check_brings_nothing_and_the_run_brings_everything_once(pair: Pair) -> None:
    pair.hub.repositories[REPO].token, pair.hub.repositories[REPO].gated = TOKEN, True
    checked = pair.weights("--check", "--diff")
    assert (checked.returncode, checked.changed > 0) == (0, True), checked.output
    assert not any(host.cache.exists() for host in pair.hosts.values())

    pair.hub.asked.clear()
    done = pair.weights("-vvv")
    assert done.returncode == 0, done.output
    assert done.told("Say what is there").splitlines()[:3] == [
        "READY",
        f"model     {REPO} at {COMMIT}",
        f"drafter   {DRAFTER} at {'d' * 40}",
    ]
    pair.whole()
    # The worker has them from the head.
    assert len(pair.hub.downloads()) == 2 * len(pair.hub.repositories[REPO].files)
    states = [path for host in pair.hosts.values() for path in host.state.rglob("*") if path.is_file()]
    kept = b"".join(path.read_bytes() for path in states)
    assert TOKEN not in done.output
    assert TOKEN.encode() not in kept


def test_a_second_run_changes_nothing_and_asks_nobody(pair: Pair) -> None:
    pair.hub.asked.clear()
    for arguments in ((), ("--check", "--diff")):
        again = pair.weights(*arguments)
        assert (again.returncode, again.changed) == (0, 0), again.output
    assert pair.hub.asked == []


def test_s12_what_is_wrong_on_a_host_is_put_right_and_the_rest_stays(pair: Pair) -> None:
    head, worker = pair.hosts.values()
    before = worker.inodes()
    os.truncate(worker.file("model-1.safetensors").resolve(), 1000)
    head.file("model-2.safetensors").resolve().write_bytes(bytes(300_078))
    pair.hub.asked.clear()
    done = pair.weights()
    assert done.returncode == 0, done.output
    pair.whole()
    assert pair.hub.downloads() == ["model-2.safetensors"]
    after = worker.inodes()
    assert {path for path in after if after[path] != before[path]} == {"model-1.safetensors"}
