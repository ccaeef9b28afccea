# SPDX-License-Identifier: Apache-2.0
"""Verification of a snapshot: all that is wrong by name, the same on every host, and in a moment the second time."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _hub_cache
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot

from tests.integration.hub.hosts import REPO, Host, checkpoint
from tests.integration.hub.hub import COMMIT, Repository


def problems(host: Host, expected: list[dict[str, Any]], **arguments: Any) -> list[str]:
    found = host.run("snapshot_manifest", expected=expected, required=False, **arguments)
    told: list[str] = found["snapshot"]["problems"]
    return told


def test_missing_cut_off_long_and_foreign_files_are_all_named(head: Host, worker: Host) -> None:
    expected = head.hold(checkpoint())
    worker.hold(checkpoint())
    worker.file("config.json").unlink()
    os.truncate(worker.file("model-1.safetensors").resolve(), 99)
    with worker.file("README.md").resolve().open("ab") as file:
        file.write(b"!")
    worker.file("stray.bin").write_bytes(b"?")
    worker.file("model-2.safetensors").resolve().unlink()
    named = problems(worker, expected)
    size = next(one["size"] for one in expected if one["path"] == "model-1.safetensors")
    assert named == [
        "README.md is too long: 18 bytes instead of 17",
        "config.json is missing",
        f"model-1.safetensors is cut off: 99 bytes instead of {size}",
        "model-2.safetensors is a link that leads nowhere",
        "stray.bin does not belong there",
    ]
    refused = worker.run("snapshot_manifest", expected=expected)
    assert all(problem in refused["msg"] for problem in named)


def test_without_another_hosts_list_a_cut_off_shard_is_known_by_its_own_header(head: Host) -> None:
    head.hold(checkpoint())
    os.truncate(head.file("model-1.safetensors").resolve(), 2000)
    shutil.rmtree(head.state)
    (problem,) = problems(head, [])
    assert problem.startswith("model-1.safetensors has 2000 bytes, and its header announces 300")


@pytest.mark.parametrize("path", ["model-1.safetensors", "config.json"])
def test_an_altered_byte_is_found_by_content_and_not_by_size(head: Host, worker: Host, path: str) -> None:
    """Also in a small file, whose blob has git's name."""
    expected = head.hold(checkpoint())
    worker.hold(checkpoint())
    assert problems(worker, expected) == []
    blob = worker.file(path).resolve()
    seen = blob.stat()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    os.utime(blob, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert problems(worker, expected, verify="size") == []
    (problem,) = problems(worker, expected)
    assert problem == f"{path} has other content than {blob.name[:12]}, the hash it should have"
    # And it is not forgotten because it was read once.
    assert problems(worker, expected) == [problem]


def test_a_file_whose_name_promises_nothing_is_compared_with_the_heads_content(head: Host, worker: Host) -> None:
    for host in (head, worker):
        host.snapshot.mkdir(parents=True)
        for path, data in checkpoint().files.items():
            host.file(path).parent.mkdir(exist_ok=True)
            host.file(path).write_bytes(data)
    expected = head.manifest()
    assert problems(worker, expected) == []
    data = bytearray(worker.file("README.md").read_bytes())
    data[0] ^= 1
    worker.file("README.md").write_bytes(data)
    (problem,) = problems(worker, expected)
    assert problem.startswith("README.md has other content than ")


def test_s03_hosts_of_different_locales_have_the_same_manifest(head: Host, worker: Host) -> None:
    names = ("a-1", "A-1", "a_1", "Model.10", "model-2", "m\N{LATIN SMALL LETTER E WITH ACUTE}")
    repository = Repository({**checkpoint().files, **{name: name.encode() for name in names}})
    expected = head.hold(repository)
    assert [one["path"] for one in expected] == sorted((one["path"] for one in expected), key=os.fsencode)
    worker.hold(repository)
    digests = {
        host.run("snapshot_manifest", environment={"LC_ALL": locale}, expected=expected)["snapshot"]["digest"]
        for host in (head, worker)
        for locale in ("C", "en_US.UTF-8", "C.UTF-8")
    }
    assert len(digests) == 1


def test_finished_weights_of_120_shards_are_verified_again_in_two_seconds(head: Host) -> None:
    """The real count of files; sparse ones, which nothing but their stamps tells apart from the real."""
    blobs = head.repository / "blobs"
    blobs.mkdir(parents=True)
    head.snapshot.mkdir(parents=True)
    for number in range(120):
        blob = blobs / f"{number:064x}"
        blob.touch()
        os.truncate(blob, 1_460_000_000)
        head.file(f"model-{number:05}-of-00120.safetensors").symlink_to(f"../../blobs/{blob.name}")
    (head.repository / "refs").mkdir()
    (head.repository / "refs" / "main").write_text(COMMIT)
    # As a full verification leaves it, which would take minutes here.
    snapshot = Snapshot(str(head.cache), str(head.state), REPO, COMMIT)
    files = _hub_cache.files(str(head.snapshot))
    verified = {one["path"]: {"stamp": one["stamp"], "hash": one["blob"]} for one in files}
    snapshot.job.keep("verified", {"verified": verified, "expected": files})

    begun = time.monotonic()
    found = head.run("snapshot_manifest")
    seconds = time.monotonic() - begun
    assert (found["snapshot"]["state"], len(found["snapshot"]["files"])) == ("complete", 120), found
    assert seconds < 2, f"{seconds:.1f} s"

    os.truncate(blobs / f"{7:064x}", 1000)
    assert problems(head, []) == ["model-00007-of-00120.safetensors is cut off: 1000 bytes instead of 1460000000"]
