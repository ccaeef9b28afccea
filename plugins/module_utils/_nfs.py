# SPDX-License-Identifier: Apache-2.0
"""The head's cache over NFS: the options of the worker's volume, and whether one that exists has them.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping


def volume_options(server: str, path: str) -> dict[str, str]:
    """Return the options of the worker's Docker volume that is `path` of `server`, as the worker mounts it."""
    options = f"addr={server},nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600"
    return {"type": "nfs", "device": f":{path}", "o": options}


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
