# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face token on the head: where it is found, and what keeps it from being used. Never shown anywhere.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import os
import stat

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
        with open(full, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise TokenError(f"the token file {full} is no regular file")
            if mode & 0o077:
                raise TokenError(
                    f"the token file {full} has mode {stat.S_IMODE(mode):04o}, open to others: run `chmod 600 {full}`"
                )
            text = file.read(_MOST_BYTES).decode("ascii", errors="replace").strip()
    except OSError as exc:
        raise TokenError(f"the token file {full} cannot be read: {exc.strerror}") from exc
    if not text or len(text.split()) != 1:
        raise TokenError(f"the token file {full} must hold the token and nothing else")
    return text
