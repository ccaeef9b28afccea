# SPDX-License-Identifier: Apache-2.0
"""The copy from the head over real sockets: links, resumption, wrong contents, full disks, strangers, no work twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _copy_client, _copy_server, _hub_cache
from ansible_collections.sparkpair.serving.plugins.module_utils._job import Job, JobError
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot

from tests.integration.hub.hosts import REPO, Host, checkpoint, shard
from tests.integration.hub.hub import COMMIT

ADDRESS, SECRET = "127.0.0.2", "the secret of this run"


@contextlib.contextmanager
def offering(head: Host) -> Iterator[int]:
    """The head offers its snapshot; gives the port."""
    wanted = [{"repo": REPO, "revision": COMMIT}]
    offer = head.run("snapshot_offer", address=ADDRESS, secret=SECRET, snapshots=wanted)
    assert "port" in offer, offer
    try:
        yield offer["port"]
    finally:
        head.run("snapshot_offer", state="absent", address=ADDRESS, port=offer["port"])
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((ADDRESS, offer["port"]))


def pull(worker: Host, port: int, manifest: list[dict[str, Any]], **arguments: Any) -> dict[str, Any]:
    own = {"address": ADDRESS, "port": port, "secret": SECRET, "manifest": manifest, **arguments}
    return worker.run("snapshot_pull", **own)


class Served:
    """The head's files offered by this very process, which a test may look into and cut."""

    def __init__(self, head: Host, secret: str = SECRET) -> None:
        files = {(REPO, path): str(head.file(path).resolve()) for path in head.paths()}
        self.offer = _copy_server.Offer(ADDRESS, secret, files, idle_s=0.2)
        self._thread = threading.Thread(target=self.offer.serve, args=(lambda progress: None,))

    def __enter__(self) -> int:
        self._thread.start()
        return self.offer.port

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def pull_here(worker: Host, port: int, manifest: list[dict[str, Any]], secret: str = SECRET) -> dict[str, Any]:
    """A copy in this process, without a job of its own."""
    snapshot = Snapshot(str(worker.cache), str(worker.state), REPO, COMMIT)
    job: Job = snapshot.job
    return _copy_client.pull(snapshot, job, (ADDRESS, port), secret, manifest, 2, "content", lambda progress: None)


class Relay:
    """Stands between the two and cuts the first connection after so many bytes of the head's."""

    def __init__(self, port: int, cut_after: int) -> None:
        self._server = socket.create_server((ADDRESS, 0))
        self.port = self._server.getsockname()[1]
        self._target, self._left = port, cut_after
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.connections += 1
                server = socket.create_connection((ADDRESS, self._target))
                cut = self._left if self.connections == 1 else -1
                threading.Thread(target=self._pass, args=(client, server, -1), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, cut), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, left: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096 if left < 0 else min(4096, left)):
                target.sendall(data)
                left -= len(data) if left > 0 else 0
                if left == 0:
                    break
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                each.close()

    def close(self) -> None:
        self._server.close()


def test_a_copy_is_equal_verified_and_a_second_one_touches_nothing(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint())
    with offering(head) as port:
        checked = pull(worker, port, manifest, _ansible_check_mode=True)
        assert (checked["changed"], worker.cache.exists()) == (True, False)
        done = pull(worker, port, manifest)
        assert (done["changed"], done["snapshot"]["state"]) == (True, "complete"), done
        assert worker.contents() == head.contents()
        assert {path: os.readlink(worker.file(path)) for path in worker.paths()} == {
            path: os.readlink(head.file(path)) for path in head.paths()
        }
        assert (worker.repository / "refs" / "main").read_text() == COMMIT
        inodes = worker.inodes()
        again = pull(worker, port, manifest)
    assert (again["changed"], again["copied_bytes"], worker.inodes()) == (False, 0, inodes)
    assert SECRET not in head.said + worker.said


def test_s02_links_that_leave_the_copied_folder_arrive_as_files(head: Host, worker: Host) -> None:
    head.hold(checkpoint())
    # Named as xet names it, which is no hash of the content.
    outside = head.cache / "blobs" / ("ff" * 32)
    outside.parent.mkdir()
    stored = head.file("model-1.safetensors")
    stored.resolve().rename(outside)
    stored.unlink()
    stored.symlink_to(f"../../../../blobs/{outside.name}")
    # And a blob that is a link into a store which several repositories share.
    blob = head.file("model-2.safetensors").resolve()
    shared = head.cache / "hub" / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    plain = head.file("README.md")
    data = plain.read_bytes()
    plain.unlink()
    plain.write_bytes(data)

    manifest = head.manifest()
    with offering(head) as port:
        assert pull(worker, port, manifest)["snapshot"]["state"] == "complete"
        assert worker.contents() == head.contents()
        for path in worker.snapshot.rglob("*"):
            assert path.resolve().is_relative_to(worker.repository)
        assert not pull(worker, port, manifest)["changed"]


def test_s12_files_that_are_right_keep_their_inode_and_only_the_rest_is_copied(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint())
    worker.hold(checkpoint())
    before = worker.inodes()
    os.truncate(worker.file("model-1.safetensors").resolve(), 1000)
    worker.file("more/notes.txt").resolve().unlink()
    extra = worker.file("model-3.safetensors")
    extra.symlink_to(worker.file("model-2.safetensors").resolve())
    with offering(head) as port:
        done = pull(worker, port, manifest)
    sizes = {one["path"]: one["size"] for one in manifest}
    assert done["copied_bytes"] == sizes["model-1.safetensors"] + sizes["more/notes.txt"], done
    assert worker.contents() == head.contents()
    after = worker.inodes()
    assert {path for path in after if after[path] == before[path]} >= set(after) - {
        "model-1.safetensors",
        "more/notes.txt",
    }


def test_a_wrong_content_of_the_same_size_is_found_and_copied_again(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint())
    worker.hold(checkpoint())
    blob = worker.file("model-2.safetensors").resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    found = worker.run("snapshot_manifest", expected=manifest, required=False)
    (problem,) = found["snapshot"]["problems"]
    assert problem.startswith("model-2.safetensors has other content than ")
    with offering(head) as port:
        done = pull(worker, port, manifest)
    assert done["copied_bytes"] == len(data)
    assert worker.contents() == head.contents()


def test_a_wrong_content_beside_a_missing_file_is_copied_again_in_the_same_run(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint())
    worker.hold(checkpoint())
    sizes = {one["path"]: one["size"] for one in manifest}
    blob = worker.file("model-2.safetensors").resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    worker.file("model-1.safetensors").resolve().unlink()
    with offering(head) as port:
        done = pull(worker, port, manifest)
    assert done["copied_bytes"] == sizes["model-1.safetensors"] + sizes["model-2.safetensors"], done
    assert worker.contents() == head.contents()


def test_s14_a_file_that_was_cut_goes_on_where_it_was(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint(size=4_000_000))
    one = max(manifest, key=lambda file: file["size"])
    begun = worker.repository / "blobs" / f"{one['blob']}{_hub_cache.PARTIAL}"
    begun.parent.mkdir(parents=True)
    # To the end of a block: a part of one is not taken for written.
    begun.write_bytes(head.file(one["path"]).read_bytes()[: 732 * 4096 + 5])
    with Served(head) as port:
        done = pull_here(worker, port, manifest)
    assert done["copied_bytes"] == sum(file["size"] for file in manifest) - 732 * 4096
    assert worker.contents() == head.contents()


def test_a_connection_that_breaks_in_a_file_is_made_again_within_the_run(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint(size=2_000_000))
    with Served(head) as port:
        relay = Relay(port, cut_after=1_000_000)
        done = pull_here(worker, relay.port, manifest)
        relay.close()
    assert relay.connections == 3
    # Less than a block came twice.
    assert 0 <= done["copied_bytes"] - sum(file["size"] for file in manifest) < 4096
    assert worker.contents() == head.contents()


def test_a_full_disk_is_said_keeps_what_came_and_the_next_run_goes_on(
    head: Host, worker: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    manifest = head.hold(checkpoint(size=3_000_000))
    worker.cache.mkdir(parents=True)
    small = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(worker.cache)]
    if subprocess.run(small, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        with Served(head) as port, pytest.raises(JobError, match=r"has 4\.2 MB free, and 6\.0 MB are to be copied"):
            pull_here(worker, port, manifest)
        # A disk that fills while the copy runs.
        monkeypatch.setattr(_copy_client, "room", lambda cache, missing: None)
        with Served(head) as port, pytest.raises(JobError, match=r"is full .* run again, and the copy goes on"):
            pull_here(worker, port, manifest)
        assert not worker.paths()
        came = sum(path.stat().st_size for path in (worker.repository / "blobs").iterdir())
        assert came > 3_000_000
        subprocess.run(["mount", "-o", "remount,size=64m", str(worker.cache)], check=True)
        with Served(head) as port:
            done = pull_here(worker, port, manifest)
        # Less than a block of each file came twice.
        assert 0 <= done["copied_bytes"] + came - sum(file["size"] for file in manifest) < 2 * 4096
        assert worker.contents() == head.contents()
    finally:
        subprocess.run(["umount", str(worker.cache)], check=True)


def test_a_head_whose_file_is_corrupt_is_blamed_and_nothing_wrong_gets_a_name(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint())
    blob = head.file("model-1.safetensors").resolve()
    blob.write_bytes(bytes(blob.stat().st_size))
    with Served(head) as port, pytest.raises(JobError, match=r"model-1\.safetensors arrived twice with another"):
        pull_here(worker, port, manifest)
    assert not (worker.repository / "blobs" / blob.name).exists()
    assert not worker.paths()


def test_strangers_get_nothing_and_are_believed_nothing(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint())
    with Served(head) as port, pytest.raises(JobError, match="does not accept this run's secret"):
        pull_here(worker, port, manifest, secret="another")
    with Served(head) as port, socket.create_connection((ADDRESS, port)) as stranger:
        _copy_server.exactly(stranger, len(_copy_server.GREETING) + _copy_server.NONCE)
        stranger.sendall(bytes(2 * _copy_server.NONCE))
        assert stranger.recv(100) == b""
    # One who knows the secret still gets what is offered and nothing else.
    with Served(head) as port, pytest.raises(JobError, match="cannot send more/secret: it is not offered"):
        pull_here(worker, port, [*manifest, {"path": "more/secret", "size": 3, "blob": "", "hash": ""}])


@pytest.mark.parametrize(("path", "blob"), [("../../../../x", ""), ("/etc/x", ""), ("a", "../x"), ("a/./b", "")])
def test_names_that_lead_out_of_the_cache_are_refused(worker: Host, path: str, blob: str) -> None:
    with pytest.raises(JobError, match="leads out of the cache"):
        pull_here(worker, 9, [{"path": path, "size": 1, "blob": blob, "hash": ""}])


def test_a_head_that_is_not_there_is_named(head: Host, worker: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_copy_client, "_MOST_FAILURES", 2)
    manifest = head.hold(checkpoint())
    with socket.create_server((ADDRESS, 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(JobError, match=f"the head at {ADDRESS}:{port} sends no more of .* run again, and it goes on"):
        pull_here(worker, port, manifest)


def test_m01_neither_side_keeps_the_copied_files_in_the_page_cache(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint(size=60_000_000))
    with offering(head) as port:
        assert pull(worker, port, manifest)["changed"]
    for host in (head, worker):
        kept, size = cached(host.file("model-1.safetensors"))
        assert kept < size // 10, f"{kept} of {size} bytes of {host.cache} are in the page cache"
    # Whoever reads them as usual has them there, until they are let go of.
    head.file("model-1.safetensors").read_bytes()
    kept, size = cached(head.file("model-1.safetensors"))
    assert kept > size // 2
    released = head.run("snapshot_release", state_dir=None, snapshots=[{"repository": REPO, "revision": COMMIT}])
    assert released["free_bytes"]["after"] > 0, released
    assert cached(head.file("model-1.safetensors"))[0] == 0


def cached(path: Path) -> tuple[int, int]:
    """How many bytes of a file are in the page cache, and how many it has."""
    said = subprocess.run(
        ["fincore", "--bytes", "--raw", "--noheadings", "--output", "RES,SIZE", str(path.resolve())],
        check=True,
        capture_output=True,
        text=True,
    )
    kept, size = said.stdout.split()
    return int(kept), int(size)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for the cache's owner")
def test_s06_root_copies_as_the_owner_of_the_cache(head: Host, worker: Host, tmp_path: Path) -> None:
    for place in [tmp_path, *tmp_path.parents]:
        if place.stat().st_mode & 0o001 == 0:
            place.chmod(place.stat().st_mode | 0o011)
    manifest = head.hold(checkpoint())
    worker.cache.mkdir(parents=True)
    os.chown(worker.cache, 12345, 12345)
    # What the pair keeps is root's, behind a directory that nobody else may enter.
    worker.state.mkdir(mode=0o700)
    with offering(head) as port:
        done = pull(worker, port, manifest)
        assert done.get("changed"), done
        assert {path.lstat().st_uid for path in worker.cache.rglob("*")} == {12345}
        assert not pull(worker, port, manifest)["changed"]


def test_two_runs_at_once_do_the_work_once(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint(size=20_000_000))
    with offering(head) as port:
        server = json.loads((head.state / "weights" / "offer-0" / "about").read_text())["pid"]
        os.kill(server, signal.SIGSTOP)
        for _ in range(2):
            assert pull(worker, port, manifest, wait=0)["finished"] is False
        os.kill(server, signal.SIGCONT)
        found = pull(worker, port, manifest, wait_only=True)
    assert found["snapshot"]["state"] == "complete"
    assert found["copied_bytes"] == sum(file["size"] for file in manifest)


def test_a_plain_file_of_the_worker_becomes_the_blob_without_a_copy(head: Host, worker: Host) -> None:
    manifest = head.hold(checkpoint())
    data = shard(300_000, 0)
    assert head.file("model-1.safetensors").read_bytes() == data
    worker.file("model-1.safetensors").parent.mkdir(parents=True)
    worker.file("model-1.safetensors").write_bytes(data)
    inode = worker.file("model-1.safetensors").stat().st_ino
    with Served(head) as port:
        done = pull_here(worker, port, manifest)
    assert done["copied_bytes"] == sum(file["size"] for file in manifest) - len(data)
    assert worker.file("model-1.safetensors").is_symlink()
    assert worker.file("model-1.safetensors").stat().st_ino == inode
