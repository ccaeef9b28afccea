# SPDX-License-Identifier: Apache-2.0
"""What a reply is made of, in the order in which it is told: text in one of its parts, and calls of functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparkpair.chat.reasoning import Channel


class TextPiece(NamedTuple):
    """Some text of a reply; never empty."""

    channel: Channel
    text: str


class CallPiece(NamedTuple):
    """One whole call of an offered function; `arguments` is a JSON object on one line."""

    id: str
    name: str
    arguments: str


Piece = TextPiece | CallPiece


def text_of(pieces: Iterable[Piece], channel: Channel = "content") -> str:
    """All text of one part of a reply."""
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece) and piece.channel == channel)
