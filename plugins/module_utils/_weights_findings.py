# SPDX-License-Identifier: Apache-2.0
"""What speaks against bringing the weights, how much is missing where, and whether there is anything to bring.

Pure, from the looks of `_weights_look.py` at every host. Private to the collection, may change at any time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _hub_cache
from ansible_collections.sparkpair.serving.plugins.module_utils._estimates import GB, MARGIN_GB
from ansible_collections.sparkpair.serving.plugins.module_utils._findings import ERROR, WARNING, Finding

ByHost = Mapping[str, Mapping[str, Any]]
_NFS_PORT = 2049
# What a snapshot may be and still be served without the Hub.
_WHOLE = ("complete", "unverified")


def judge(plan: Mapping[str, Any], probes: ByHost) -> list[Finding]:
    """Return what keeps the head from downloading; only warnings where what is there is whole."""
    head = _head(plan)
    findings = []
    for one in probes[head].get("snapshots", ()):
        refused = one["refused"]
        if not refused["kind"]:
            continue
        whole = one["state"] in _WHOLE
        here = f"{one['repository']} is {one['state']} in the cache" + (", and is served" if whole else "")
        findings.append(
            Finding(
                id="hub",
                severity=WARNING if whole else ERROR,
                host=head,
                found=f"{refused['text']}; {here}",
                wanted="leave to read the repository on the Hub, or its snapshot in the cache",
                remedy=_REMEDIES[refused["kind"]],
            )
        )
    return findings


_REMEDIES = {
    "token": "put the token of an account that may read it into a file of mode 0600 on the head, and name that file in "
    "sparkpair_hf_token_file",
    "gated": "accept the terms there with the account of the token",
    "absent": "correct the repository, or its revision",
    "unreachable": "see the head's way to the Internet, or name a mirror in sparkpair_hub_endpoint",
}


def missing(plan: Mapping[str, Any], settings: ByHost, probes: ByHost) -> dict[str, int | None]:
    """Return by host how many bytes its cache lacks of the weights, None where nobody could count them."""
    head = _head(plan)
    wanted = probes[head].get("snapshots", ())
    result: dict[str, int | None] = {}
    for host, probe in probes.items():
        if host != head and settings[host]["worker_weights"] == "nfs":
            result[host] = 0
            continue
        result[host] = _sum([_lacks(one, own) for one, own in zip(wanted, probe.get("snapshots", ()))])
    return result


def _lacks(wanted: Mapping[str, Any], own: Mapping[str, Any]) -> int | None:
    """Return what one host lacks of one snapshot; `wanted` is the head's look at it, which knows its files."""
    if own["state"] == "complete":
        return 0
    if not wanted["files"] or (wanted["state"] not in _WHOLE and not (wanted["known"] or _of_the_hub(wanted))):
        return None
    return _hub_cache.missing_bytes(wanted["files"], own["blobs"])


def _of_the_hub(wanted: Mapping[str, Any]) -> bool:
    return not wanted["refused"]["kind"] and bool(wanted["files"])


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def cache_bytes(settings: Mapping[str, Any], lacking: int | None) -> int:
    """Return how much must be free for what a host lacks: with a margin, or a fixed amount where it is not known."""
    if lacking is None:
        return int(settings["download_free_gb"]) * GB
    return lacking + min(MARGIN_GB * GB, lacking)


def settled(plan: Mapping[str, Any], settings: ByHost, probes: ByHost) -> bool:
    """Say whether every host has all that it serves, verified, and the same: its own, or what a mount has shown."""
    head, *others = probes
    borrowing = bool(plan["snapshots"]) and settings[head]["worker_weights"] == "nfs"
    looks = [probes[host].get("snapshots", ()) for host in ([head] if borrowing else [head, *others])]
    if not all(one["state"] == "complete" for look in looks for one in look):
        return False
    wanted = [one["digest"] for one in looks[0]]
    if borrowing:
        own = settings[head]
        # A server of one's own is not looked at.
        serves = bool(own["nfs_server"]) or any(one["port"] == _NFS_PORT for one in probes[head]["listening"])
        # What is served at no pinned revision, only the role of the weights finds out for the others.
        pinned = all(one["revision"] for one in plan["snapshots"])
        path = os.path.normpath(own["nfs_path"] or probes[head]["hf_cache"])
        seen = [(probes[host].get("container") or {}).get("volume") or {} for host in others]
        right = all(one.get("digests") == wanted and one.get("path") == path for one in seen)
        return serves and pinned and right and all(one["known"] for one in looks[0])
    return all(one["known"] for one in looks[0]) and all([one["digest"] for one in look] == wanted for look in looks)


def mounted_from(probes: ByHost) -> list[str]:
    """Return the servers that the others have mounted, each once."""
    volumes = [(probe.get("container") or {}).get("volume") or {} for probe in probes.values()]
    return sorted({str(volume["server"]) for volume in volumes if volume})


def release(plan: Mapping[str, Any], findings: Sequence[Finding]) -> list[str]:
    """Return the hosts on which loading would find cached files in its place: the weights' own are let go of first."""
    return [finding.host for finding in findings if finding.id == "page_cache"] if plan["snapshots"] else []


def _head(plan: Mapping[str, Any]) -> str:
    return str(plan["ranks"][0]["host"])
