# SPDX-License-Identifier: Apache-2.0
"""What code this is: a digest of the package's sources, compared between ranks and by the deployment."""

from __future__ import annotations

import functools
import hashlib
import pathlib


@functools.cache
def code_digest() -> str:
    """SHA-256 (hex) over the relative path and bytes of every source and data file of the package, in byte order."""
    root = pathlib.Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*"), key=lambda entry: entry.relative_to(root).as_posix().encode()):
        if not path.is_file() or "__pycache__" in path.parts or path.suffix == ".pyc":
            continue
        name = path.relative_to(root).as_posix().encode()
        digest.update(len(name).to_bytes(8, "big") + name)
        content = path.read_bytes()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
