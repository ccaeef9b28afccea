# SPDX-License-Identifier: Apache-2.0
"""What the preflight makes of the weights: how much is missing where, what the Hub refuses, when nothing is to do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils import _weights_findings
from ansible_collections.sparkpair.serving.plugins.module_utils._estimates import GB

FILES = [
    {"path": "config.json", "size": 10, "blob": "a" * 40},
    {"path": "one.safetensors", "size": 5 * GB, "blob": "b" * 64},
    {"path": "two.safetensors", "size": 7 * GB, "blob": "c" * 64},
]
BLOBS = {one["blob"]: one["size"] for one in FILES}
WHOLE = {
    "repository": "org/model",
    "revision": "f" * 40,
    "state": "complete",
    "problems": [],
    "digest": "d1",
    "known": True,
    "blobs": BLOBS,
    "files": FILES,
    "refused": {"kind": "", "text": ""},
}
PLAN = {"ranks": [{"host": "a"}, {"host": "b"}], "snapshots": [{"repository": "org/model"}]}


def probes(head: dict[str, Any] | None = None, worker: dict[str, Any] | None = None) -> dict[str, Any]:
    """The looks of two hosts at one snapshot, whole but for the changes."""
    return {
        host: {"snapshots": [{**copy.deepcopy(WHOLE), **(change or {})}]}
        for host, change in (("a", head), ("b", worker))
    }


def settings(worker_weights: str = "copy") -> dict[str, Any]:
    return {host: {"worker_weights": worker_weights, "download_free_gb": 180} for host in ("a", "b")}


def missing(seen: dict[str, Any], worker_weights: str = "copy") -> tuple[Any, Any]:
    found = _weights_findings.missing(PLAN, settings(worker_weights), seen)
    return found["a"], found["b"]


def test_whole_weights_need_no_room_and_no_work() -> None:
    assert missing(probes()) == (0, 0)
    assert _weights_findings.settled(PLAN, settings(), probes())


def test_s04_each_host_needs_room_for_what_its_own_blobs_lack() -> None:
    """A new revision on the head of which two blobs are there, and a worker that has one of them."""
    head = {"state": "absent", "known": False, "blobs": {"a" * 40: 10, "c" * 64: 7 * GB}}
    worker = {"state": "absent", "known": False, "blobs": {"b" * 64: 5 * GB, "c" * 64: 1}, "files": []}
    assert missing(probes(head, worker)) == (5 * GB, 7 * GB + 10)


def test_s04_what_nobody_could_count_falls_back_to_the_fixed_amount() -> None:
    refused = {"kind": "unreachable", "text": "no answer"}
    nothing = {"state": "absent", "known": False, "files": [], "blobs": {}, "refused": refused}
    assert missing(probes(nothing, nothing)) == (None, None)
    assert _weights_findings.cache_bytes({"download_free_gb": 180}, None) == 180 * GB


@pytest.mark.parametrize(("lacking", "needs"), [(0, 0), (GB, 2 * GB), (100 * GB, 105 * GB)])
def test_s04_room_is_asked_for_with_a_margin_only_where_something_is_missing(lacking: int, needs: int) -> None:
    assert _weights_findings.cache_bytes({"download_free_gb": 180}, lacking) == needs


def test_a_worker_that_reads_over_nfs_needs_no_room() -> None:
    absent = {"state": "absent", "known": False, "blobs": {}, "files": []}
    assert missing(probes(worker=absent), "nfs") == (0, 0)


@pytest.mark.parametrize(
    "change",
    [{"state": "unverified"}, {"state": "damaged"}, {"digest": "d2"}, {"state": "absent", "digest": ""}],
    ids=lambda change: "-".join(change.values()),
)
def test_anything_but_verified_and_equal_weights_is_work(change: dict[str, Any]) -> None:
    assert not _weights_findings.settled(PLAN, settings(), probes(worker=change))
    if change != {"digest": "d2"}:
        assert not _weights_findings.settled(PLAN, settings(), probes(head=change))


MOUNTED = {"server": "192.0.2.1", "path": "/srv/hf", "digests": ["d1"]}


def over_nfs(volume: dict[str, Any] | None, own: dict[str, Any] | None = None, **head: Any) -> bool:
    """Whether nothing is to be done for a worker that has mounted the head's cache and holds nothing of its own."""
    seen = probes(worker={"state": "absent", "digest": "", "known": False})
    seen["a"].update({"hf_cache": "/srv/hf", "listening": [{"port": 2049}], **head})
    seen["b"]["container"] = {"volume": volume}
    plan = {**PLAN, "snapshots": [{"repository": "org/model", "revision": "f" * 40, **(own or {})}]}
    extra = {"nfs_path": "", "nfs_server": ""}
    return _weights_findings.settled(plan, {host: {**one, **extra} for host, one in settings("nfs").items()}, seen)


def test_a_mount_that_was_compared_with_what_the_head_has_now_is_no_work() -> None:
    assert over_nfs(MOUNTED)
    assert not over_nfs(None)
    assert not over_nfs({**MOUNTED, "digests": ["d0"]})
    assert not over_nfs({**MOUNTED, "path": "/srv/other"})
    # Nobody serves it, and nobody has said which revision the others are to serve.
    assert not over_nfs(MOUNTED, listening=[{"port": 22}])
    assert not over_nfs(MOUNTED, own={"revision": ""})
    assert not over_nfs(MOUNTED, snapshots=[{**copy.deepcopy(WHOLE), "known": False}])


def test_weights_that_were_never_compared_with_a_list_are_work() -> None:
    assert not _weights_findings.settled(PLAN, settings(), probes(head={"known": False}))


@pytest.mark.parametrize(("state", "severity"), [("absent", "error"), ("damaged", "error"), ("unverified", "warning")])
@pytest.mark.parametrize("kind", ["token", "gated", "absent", "unreachable"])
def test_what_the_hub_refuses_stops_only_what_cannot_be_served_without_it(kind: str, state: str, severity: str) -> None:
    head = {"state": state, "known": False, "refused": {"kind": kind, "text": "the Hub says no"}}
    (finding,) = _weights_findings.judge(PLAN, probes(head))
    assert (finding.id, finding.severity, finding.host) == ("hub", severity, "a")
    assert finding.found.startswith(f"the Hub says no; org/model is {state} in the cache")
    remedies = {"token": "hf_token_file", "gated": "terms", "absent": "revision", "unreachable": "hub_endpoint"}
    assert remedies[kind] in finding.remedy
