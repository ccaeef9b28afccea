# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face token on the head: where it is found, and what keeps it from being used. Never shown anywhere.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import os

from ansible_collections.sparkpair.serving.plugins.module_utils import _owner_file

_MOST_BYTES = 4096


class TokenError(Exception):
    """The token's file cannot be used. The text says why and what to do, and never quotes the file."""


def find(path: str, cache: str) -> tuple[str, str]:
    """Return the token and where it was found, both empty without one. Raises TokenError.

    The file that was set comes first, then HF_TOKEN of the login, then what `hf auth login` has left in the cache.
    """
    if path:
        return _read(path), f"the file {path}"
    if os.environ.get("HF_TOKEN", "").strip():
        return os.environ["HF_TOKEN"].strip(), "HF_TOKEN of the login"
    own = os.path.join(cache, "token")
    with contextlib.suppress(OSError), open(own, "rb") as file:
        text = file.read(_MOST_BYTES).decode("ascii", errors="replace").strip()
        return (text, f"the file {own}") if text else ("", "")
    return "", ""


def _read(path: str) -> str:
    full = os.path.abspath(os.path.expanduser(path))
    try:
        text = _owner_file.read(full, "token", _MOST_BYTES).decode("ascii", errors="replace").strip()
    except _owner_file.OwnerFileError as exc:
        raise TokenError(str(exc)) from exc
    if not text or len(text.split()) != 1:
        raise TokenError(f"the token file {full} must hold the token and nothing else")
    return text
