# SPDX-License-Identifier: Apache-2.0
"""How a host's snapshots are, in a moment: nothing is read but names, sizes and what was verified before.

The head also asks the Hub, where something is missing or was never compared with the Hub's list: what it must download,
and whether it may. Private to the collection, may change at any time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _hub_ask, _hub_cache, _hub_token, _snapshot
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot

_MOST_PROBLEMS = 20


def look(
    cache: str, state_dir: str, wanted: Sequence[Mapping[str, str]], verify: str, hub: Mapping[str, str] | None
) -> list[dict[str, Any]]:
    """Return what was found of every wanted snapshot (each a `repository` and a `revision`, which may be empty).

    `revision` (the cache's own where none is wanted), `path` (empty without one), `present` (its configuration can be
    read), `state`, `problems`, `digest`, `known` (it was compared with a list of what it should have) and, where
    anybody needs them, `blobs` (sizes by name) and `files` (each `path`, `size`, `blob`). With `hub` (`endpoint` and
    `token_file`) the Hub is asked where that is needed; `files` are then the Hub's, and `refused` says in `kind` and
    `text` why it did not answer, empty when it did.
    """
    return [_one(cache, state_dir, one["repository"], one["revision"], verify, hub) for one in wanted]


def _one(
    cache: str, state_dir: str, repo: str, revision: str, verify: str, hub: Mapping[str, str] | None
) -> dict[str, Any]:
    commit = revision or _hub_cache.main_revision(cache, repo)
    refused = {"kind": "", "text": ""}
    snapshot = Snapshot(cache, state_dir, repo, commit)
    seen = _snapshot.look(snapshot, verify) if commit else None
    known = bool(commit) and _snapshot.is_known(snapshot)
    files: list[dict[str, Any]] = []
    if hub and not (seen and known and seen["state"] == _snapshot.COMPLETE):
        try:
            token, _ = _hub_token.find(hub["token_file"], cache)
            commit, files = _hub_ask.revision(hub["endpoint"], repo, commit, token)
            snapshot = Snapshot(cache, state_dir, repo, commit)
            seen = _snapshot.look(snapshot, verify, files)
        except _hub_token.TokenError as error:
            refused = {"kind": "token", "text": str(error)}
        except _hub_ask.HubError as error:
            refused = {"kind": error.kind, "text": str(error)}
    path = snapshot.path if commit else ""
    found = seen or {"state": _snapshot.ABSENT, "problems": [], "digest": "", "files": []}
    own = [{key: one[key] for key in ("path", "size", "blob")} for one in found["files"]]
    return {
        "repository": repo,
        "revision": commit,
        "path": path,
        "present": bool(path) and os.path.isfile(os.path.join(path, "config.json")),
        "state": found["state"],
        "problems": found["problems"][:_MOST_PROBLEMS],
        "digest": found["digest"],
        "known": known,
        "blobs": {} if found["state"] == _snapshot.COMPLETE and not hub else _hub_cache.blobs(cache, repo),
        "files": files or (own if hub else []),
        "refused": refused,
    }
