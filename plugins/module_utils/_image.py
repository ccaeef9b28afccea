# SPDX-License-Identifier: Apache-2.0
"""What an image is: its content, told apart from the ids and names that Docker gives it.

An image's id is the digest of its configuration in one image store of Docker's and of its manifest in the other, so the
same content has different ids on two hosts. Pure; private to the collection, may change at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._spec import canonical_json

# The label that carries the hash of what the image was made of, as the published images have it.
PATCHES_LABEL = "tf.patches"
_HASH_LENGTH = 12


def identity(inspected: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an image's content, from `docker image inspect`: 64 hex digits.

    It covers the layers (digests of their unpacked content, in order), the environment, entry point, command and
    working directory. What is absent and what is empty are the same.
    """
    config = inspected.get("Config") or {}
    content = {
        "layers": list(inspected["RootFS"].get("Layers") or []),
        "env": list(config.get("Env") or []),
        "entrypoint": list(config.get("Entrypoint") or []),
        "command": list(config.get("Cmd") or []),
        "workdir": config.get("WorkingDir") or "",
    }
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def kept_name(name: str, identity_: str) -> str:
    """Return the name under which an image is kept when its own name goes to another one."""
    repository, colon, tag = name.rpartition(":")
    return f"{repository if colon and '/' not in tag else name}:kept-{identity_[:_HASH_LENGTH]}"


def described(inspected: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what counts of an image: `exists`, `identity`, `patches` (its label), `digests` and `size_bytes`."""
    if inspected is None:
        return {"exists": False, "identity": "", "patches": "", "digests": [], "size_bytes": 0}
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    return {
        "exists": True,
        "identity": identity(inspected),
        "patches": labels.get(PATCHES_LABEL, ""),
        "digests": list(inspected.get("RepoDigests") or []),
        "size_bytes": int(inspected.get("Size") or 0),
    }


def inputs_hash(patches: Sequence[bytes], extras: str) -> str:
    """Return the hash of what an image is made of: the patches' bytes in order, then the extras and a newline.

    Its first 12 hex digits name the image's tag, its kernel cache and decide whether it has to be made anew.
    """
    digest = hashlib.sha256()
    for patch in patches:
        digest.update(patch)
    digest.update(f"{extras}\n".encode())
    return digest.hexdigest()[:_HASH_LENGTH]
