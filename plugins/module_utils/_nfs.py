# SPDX-License-Identifier: Apache-2.0
"""The head's cache over NFS: the options of the worker's volume, whether one that exists has them, and what was
compared with the head when it was last mounted.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import write_json

_RECORD = "nfs-volume.json"


def volume_options(server: str, path: str) -> dict[str, str]:
    """Return the options of the worker's Docker volume that is `path` of `server`, as the worker mounts it."""
    options = f"addr={server},nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600"
    return {"type": "nfs", "device": f":{path}", "o": options}


def remember(state_dir: str, name: str, server: str, path: str, digests: Sequence[str]) -> None:
    """Keep that a volume was mounted and shows snapshots with these digests. Raises OSError."""
    record = {"name": name, "server": server, "path": path, "digests": list(digests)}
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    write_json(os.path.join(state_dir, _RECORD), record)


def remembered(state_dir: str, name: str, options: Mapping[str, str]) -> dict[str, Any] | None:
    """Return `server`, `path` and `digests` as they were remembered, None unless the volume still is that one.

    `options` are those that Docker tells of the volume now.
    """
    try:
        with open(os.path.join(state_dir, _RECORD), encoding="utf-8") as file:
            record = json.load(file)
        known = {key: record[key] for key in ("server", "path", "digests")}
        same = record["name"] == name and not differences(options, volume_options(record["server"], record["path"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if same else None


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return how an existing volume differs from the wanted one, each with both values."""
    names = {"type": "type", "device": "path", "o": "options"}
    return [
        f"its {words} {found.get(name) or '(none)'} instead of {wanted[name]}"
        for name, words in names.items()
        if _parts(found.get(name) or "") != _parts(wanted[name])
    ]


def _parts(options: str) -> list[str]:
    return sorted(options.split(","))
