# SPDX-License-Identifier: Apache-2.0
"""Bytes to text, a token at a time, without ever showing half a character."""

from __future__ import annotations

import codecs


class Utf8Stream:
    """An incremental UTF-8 decoder: the pieces it returns add up to the text of all bytes at once.

    Bytes that may still become a character are held back. Bytes that cannot become one come out as U+FFFD,
    exactly as they would if all bytes were decoded together.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.whole = True
        """Whether no bytes are held back."""

    def feed(self, data: bytes) -> str:
        """The text that is certain now."""
        text = self._decoder.decode(data)
        self.whole = not self._decoder.getstate()[0]
        return text

    def flush(self) -> str:
        """The text of an unfinished character at the end (one U+FFFD), and a fresh start."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        self.whole = True
        return text
