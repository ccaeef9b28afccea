# SPDX-License-Identifier: Apache-2.0
"""Data URLs: the bytes that a request brings along inside its text."""

from __future__ import annotations

import binascii
import re
from urllib.parse import unquote_to_bytes

from sparkpair.media.errors import MediaError

SCHEME = "data:"
_HEAD = re.compile(rb"data:([^,]{0,256}),", re.IGNORECASE)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def is_data_url(url: str) -> bool:
    """Whether a URL carries its own bytes."""
    return url[: len(SCHEME)].lower() == SCHEME


def decoded(url: bytes) -> bytes:
    """The bytes of a data URL in ASCII. Raises MediaError when it is malformed; the declared type plays no part."""
    head = _HEAD.match(url)
    if head is None:
        raise MediaError("the data URL is malformed; expected data:TYPE;base64,DATA")
    data = memoryview(url)[head.end() :]
    if not head[1].lower().endswith(b";base64"):
        if _BAD_ESCAPE.search(data):
            raise MediaError("the data URL has a % that begins no escape")
        return unquote_to_bytes(bytes(data))
    return from_base64(data)


def from_base64(text: bytes | memoryview) -> bytes:
    """The bytes that base64 stands for. It is read strictly: its own alphabet, no blanks, and padding where it belongs.
    Raises MediaError.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise MediaError(f"the data is not valid base64: {error}") from None
