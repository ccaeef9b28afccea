# SPDX-License-Identifier: Apache-2.0
"""The file of API keys on the head, as the probes need it: one key out of it, and what is wrong with it.

The format is the engine's: one key a line as KEY or LABEL: KEY, `#` begins a comment, mode 0600. Private to the
collection, may change at any time.
"""

from __future__ import annotations

from ansible_collections.sparkpair.serving.plugins.module_utils import _owner_file

_MOST_BYTES = 1 << 20


class KeyFileError(Exception):
    """The file cannot be used. The text says why and what to do, and never quotes the file."""


def first_key(path: str) -> str | None:
    """Return the first key of a file, None without a path. Raises KeyFileError."""
    if not path:
        return None
    try:
        lines = _owner_file.read(path, "key", _MOST_BYTES).decode("utf-8", errors="replace").splitlines()
    except _owner_file.OwnerFileError as exc:
        raise KeyFileError(str(exc)) from exc
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            return text.partition(":")[2].strip() if ":" in text else text
    raise KeyFileError(f"the key file {path} has no key: write one a line, as KEY or LABEL: KEY")


def problem_of(path: str) -> str:
    """Return what keeps a file from being used, empty when nothing does."""
    try:
        first_key(path)
    except KeyFileError as exc:
        return str(exc)
    return ""


def authorization(key: str | None) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}
