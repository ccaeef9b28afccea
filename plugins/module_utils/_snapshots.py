# SPDX-License-Identifier: Apache-2.0
"""Which commit of a repository a Hugging Face cache serves, and whether its snapshot can be opened there.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any


def look(cache: str, repository: str, revision: str) -> dict[str, Any]:
    """Return `repository`, `revision`, `path` (of the snapshot, empty without a revision) and `present`.

    Without a `revision` the one that the cache knows as main is taken, if there is one. A snapshot is present when its
    configuration can be read: a link into nothing cannot.
    """
    folder = os.path.join(cache, "hub", f"models--{repository.replace('/', '--')}")
    if not revision:
        with contextlib.suppress(OSError), open(os.path.join(folder, "refs", "main"), encoding="ascii") as file:
            revision = file.read().strip()
    path = os.path.join(folder, "snapshots", revision) if revision else ""
    present = bool(path) and os.path.isfile(os.path.join(path, "config.json"))
    return {"repository": repository, "revision": revision, "path": path, "present": present}
