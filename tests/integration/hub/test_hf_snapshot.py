# SPDX-License-Identifier: Apache-2.0
"""Downloads on the head with the Hub's real library: whole, verified, resumed, refused in words, and never twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _hub_download
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot

from tests.integration.hub.hosts import REPO, Host, checkpoint, sha256
from tests.integration.hub.hub import COMMIT, Hub

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


def download(head: Host, hub: Hub, **arguments: Any) -> dict[str, Any]:
    return head.run("hf_snapshot", endpoint=hub.endpoint, **arguments)


def test_a_snapshot_is_downloaded_verified_and_then_left_alone_without_asking_anybody(head: Host, hub: Hub) -> None:
    checked = download(head, hub, _ansible_check_mode=True)
    assert (checked["changed"], head.cache.exists()) == (True, False), checked

    done = download(head, hub)
    assert (done["changed"], done["snapshot"]["state"]) == (True, "complete"), done
    assert head.contents() == hub.repositories[REPO].files
    assert (head.repository / "refs" / "main").read_text() == COMMIT
    assert done["downloaded_bytes"] == sum(map(len, hub.repositories[REPO].files.values()))

    hub.asked.clear()
    again = download(head, hub, command=["/nowhere/python"], revision="")
    assert (again["changed"], again["snapshot"]["digest"]) == (False, done["snapshot"]["digest"])
    assert hub.asked == []


@pytest.mark.parametrize("plain", [False, True], ids=["as the library leaves it", "files that somebody put there"])
def test_s07_nothing_that_downloads_is_looked_for_where_only_contents_are_verified(head: Host, plain: bool) -> None:
    files = head.hold(checkpoint())
    if plain:
        for path in head.paths():
            whole = head.file(path).resolve()
            head.file(path).unlink()
            whole.rename(head.file(path))
    shutil.rmtree(head.state)
    snapshot = Snapshot(str(head.cache), str(head.state), REPO, COMMIT)

    def looked_for() -> list[str]:
        raise AssertionError("a program was looked for")

    done = _hub_download.bring(
        snapshot, snapshot.job, looked_for, "http://127.0.0.1:9", "", files, "content", lambda progress: None
    )
    assert done == {"downloaded_bytes": 0}


@pytest.mark.parametrize(
    ("given", "revision", "words"),
    [
        ("", COMMIT, "the Hub wants a token for org/model (401)"),
        ("hf_wrong", COMMIT, "the Hub does not accept the token (401"),
        ("terms-not-accepted", COMMIT, "the token's account may not read org/model (403): accept the terms on http"),
        (TOKEN, "f" * 40, f"the Hub has no revision {'f' * 40} of org/model (404)"),
    ],
    ids=["no token", "wrong token", "gated", "no such revision"],
)
def test_what_the_hub_refuses_is_told_apart_before_anything_is_downloaded(
    head: Host, hub: Hub, given: str, revision: str, words: str
) -> None:
    hub.repositories[REPO].token, hub.repositories[REPO].gated = TOKEN, True
    refused = download(head, hub, revision=revision, environment={"HF_TOKEN": given})
    assert words in refused["msg"]
    assert hub.downloads() == []
    assert not given or given not in head.said


def test_a_token_comes_from_a_file_of_its_owners_and_is_seen_nowhere(head: Host, hub: Hub, tmp_path: Path) -> None:
    hub.repositories[REPO].token, hub.repositories[REPO].gated = TOKEN, True
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    assert f"has mode 0644, open to others: run `chmod 600 {file}`" in download(head, hub, token_file=str(file))["msg"]

    file.chmod(0o600)
    hub.held_after = 100_000
    hub.flowing.clear()
    begun = download(head, hub, token_file=str(file), wait=2)
    assert begun["finished"] is False
    # The downloading program runs now: its command line and environment are looked at where anybody could.
    seen = b""
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                seen += (process / name).read_bytes()
            except OSError:
                continue
    assert b"huggingface_hub" in seen
    assert TOKEN.encode() not in seen
    hub.flowing.set()
    assert download(head, hub, token_file=str(file), wait_only=True)["snapshot"]["state"] == "complete"
    kept = b"".join(path.read_bytes() for path in head.state.rglob("*") if path.is_file())
    assert TOKEN not in head.said
    assert TOKEN.encode() not in kept
    assert any(authorization == f"Bearer {TOKEN}" for _, _, authorization in hub.asked)


def test_an_interrupted_download_keeps_what_is_whole_and_goes_on(head: Host, hub: Hub) -> None:
    hub.cut["model-2.safetensors"] = 100_000
    broken = download(head, hub)
    assert "was interrupted" in broken["msg"]
    assert "run again, and it goes on" in broken["msg"]
    arrived = head.file("model-1.safetensors").stat().st_ino
    hub.cut.clear()
    hub.asked.clear()
    assert download(head, hub)["snapshot"]["state"] == "complete"
    assert hub.downloads() == ["model-2.safetensors"]
    assert head.file("model-1.safetensors").stat().st_ino == arrived


def test_a_play_that_ends_early_leaves_a_download_that_the_next_one_finds(head: Host, hub: Hub) -> None:
    hub.held_after = 100_000
    hub.flowing.clear()
    begun = download(head, hub, wait=2.5)
    assert (begun["finished"], begun["progress"]["doing"]) == (False, "downloading")
    total = sum(map(len, hub.repositories[REPO].files.values()))
    assert begun["progress"]["done"] < begun["progress"]["total"] == total
    found = download(head, hub, wait=0)
    assert found["finished"] is False
    hub.flowing.set()
    assert download(head, hub)["snapshot"]["state"] == "complete"
    assert sorted(hub.downloads()) == sorted(path.rpartition("/")[2] for path in hub.repositories[REPO].files)


def test_another_content_than_the_hub_announces_is_named_and_not_kept(head: Host, hub: Hub) -> None:
    right = hub.repositories[REPO].files["model-1.safetensors"]
    hub.wrong["model-1.safetensors"] = bytes(len(right))
    refused = download(head, hub)
    assert "is not what it announces, twice: model-1.safetensors has other content" in refused["msg"]
    assert not os.path.lexists(head.file("model-1.safetensors"))
    hub.wrong.clear()
    assert download(head, hub)["snapshot"]["state"] == "complete"


def test_cut_off_and_altered_files_are_downloaded_again_and_the_others_stay(head: Host, hub: Hub) -> None:
    assert download(head, hub)["changed"]
    before = head.inodes()
    os.truncate(head.file("model-1.safetensors").resolve(), 1000)
    blob = head.file("model-2.safetensors").resolve()
    times = (blob.stat().st_atime_ns, blob.stat().st_mtime_ns)
    with blob.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")
    # As a bad disk does it: the same size, and no time tells.
    os.utime(blob, ns=times)
    hub.asked.clear()
    assert download(head, hub)["snapshot"]["state"] == "complete"
    assert sorted(hub.downloads()) == ["model-1.safetensors", "model-2.safetensors"]
    assert head.contents() == hub.repositories[REPO].files
    kept = {path: inode for path, inode in head.inodes().items() if not path.startswith("model-")}
    assert kept == {path: before[path] for path in kept}


def test_what_is_whole_serves_without_the_hub_and_what_is_not_says_so(head: Host, hub: Hub) -> None:
    assert download(head, hub)["changed"]
    shutil.rmtree(head.state)
    offline = {"endpoint": "http://127.0.0.1:9"}
    used = head.run("hf_snapshot", **offline)
    assert used["snapshot"]["state"] == "complete"
    assert "does not answer" in str(used["warnings"])
    assert "is whole, and used" in str(used["warnings"])
    head.file("model-2.safetensors").resolve().unlink()
    lost = head.run("hf_snapshot", **offline)
    assert "does not answer" in lost["msg"]
    assert "model-2.safetensors is a link that leads nowhere" in lost["msg"]


def test_files_of_the_shared_xet_store_are_followed_and_verified(head: Host, hub: Hub) -> None:
    assert download(head, hub)["changed"]
    blob = head.file("model-1.safetensors").resolve()
    stored = head.cache / "hub" / "blobs" / "ab" / ("ab" * 32)
    stored.parent.mkdir(parents=True)
    blob.rename(stored)
    blob.symlink_to(os.path.relpath(stored, blob.parent))
    shutil.rmtree(head.state)
    hub.asked.clear()
    assert download(head, hub)["snapshot"]["state"] == "complete"
    assert hub.downloads() == []
    with stored.open("r+b") as file:
        file.write(b"\1")
    assert download(head, hub)["snapshot"]["state"] == "complete"
    assert hub.downloads() == ["model-1.safetensors"]
    assert sha256(head.file("model-1.safetensors").read_bytes()) == blob.name
