# SPDX-License-Identifier: Apache-2.0
"""Saving what a rank's container has said before it is removed, because its log goes with it.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _container, _saved_logs
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import Docker


def save(docker: Docker, inspected: dict[str, Any], rank: str, log_dir: str, keep: int) -> str:
    """Save the log of a container of `docker inspect` under the name `rank` and return the path.

    The newest `keep` saved logs of the rank stay. Raises DockerError and OSError.
    """
    seen = _container.state(inspected)
    name = inspected["Name"].lstrip("/")
    header = (
        f"# {rank}, container {name}, started {seen['started_at'] or 'never'}, {seen['words']} at "
        f"{seen['ended_at'] or 'this moment'}, image {inspected['Config']['Image']}, "
        f"spec {seen['spec_hash'] or 'unknown'}"
    )
    os.makedirs(log_dir, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=log_dir, prefix=".saving-") as unpacked:
        path = os.path.join(unpacked, "log")
        docker.save_log(name, path)
        saved = _saved_logs.save_log(path, log_dir, rank, header)
    _saved_logs.prune(log_dir, rank, keep)
    return saved
