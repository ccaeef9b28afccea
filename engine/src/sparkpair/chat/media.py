# SPDX-License-Identifier: Apache-2.0
"""Pictures and clips inside messages: what a client named, and where its tokens come to stand in the prompt.

A template writes the same markers for every picture, and may put messages into another order than they came in. So each
picture gets a name of secret digits in front of it while the template runs; the names say afterwards which is which.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sparkpair.chat.tokenizer import Segment, TextTokenizer
from sparkpair.media.data_url import is_data_url
from sparkpair.media.prepared import Prepared

KINDS: dict[str, Literal["picture", "clip"]] = {"image_url": "picture", "video_url": "clip"}
"""Types of parts that name a picture or a clip."""

TEMPLATE_TYPES = {"picture": "image", "clip": "video"}
STAND_INS = {"<|image|>": "picture", "<|video|>": "clip"}
DETAILS = ("auto", "low", "high")

_DIGITS = 24
_NUMBER_DIGITS = 4


class BadPart(ValueError):
    """A part is malformed; the text names the place."""


class PlacedPart(dict[str, Any]):
    """A part of a chat message that was made of a part of another dialect, whose place errors should name. `base64`:
    its URL is none, but the data of one.
    """

    def __init__(self, fields: Mapping[str, Any], place: str, *, base64: bool = False) -> None:
        super().__init__(fields)
        self.place = place
        self.base64 = base64


class MediaRef:
    """What a client named: `url`, empty once it has been read, and `where` for errors. `low`: it need not be sharp.
    `base64`: `url` is only what stands behind the head of a data URL; the two are never put together, being long.
    """

    __slots__ = ("base64", "kind", "low", "url", "where")

    def __init__(
        self, kind: Literal["picture", "clip"], url: str, where: str, *, low: bool = False, base64: bool = False
    ) -> None:
        self.kind = kind
        self.url = url
        self.where = where
        self.low = low
        self.base64 = base64

    @property
    def inline(self) -> bool:
        """Whether its bytes came with the request."""
        return self.base64 or is_data_url(self.url)


def media_ref(part: Mapping[str, Any], where: str) -> MediaRef:
    """What a part of type image_url or video_url names. Raises BadPart saying what is wrong with it."""
    kind = str(part["type"])
    named = part.get(kind)
    place = part.place if isinstance(part, PlacedPart) else f"{where}.{kind}"
    fields = {"url": named} if isinstance(named, str) else named
    if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
        raise BadPart(f"{place}: expected an object with a url")
    detail = fields.get("detail")
    if detail is not None and detail not in DETAILS:
        raise BadPart(f"{place}.detail: expected one of {', '.join(DETAILS)}")
    place = part.place if isinstance(part, PlacedPart) else where
    base64 = isinstance(part, PlacedPart) and part.base64
    return MediaRef(KINDS[kind], fields["url"], place, low=detail == "low", base64=base64)


def media_of(messages: Sequence[Mapping[str, Any]]) -> Iterator[MediaRef]:
    """All pictures and clips of normalised messages, in order."""
    for message in messages:
        if isinstance(message["content"], list):
            for part in message["content"]:
                if "media" in part:
                    yield part["media"]


class Places(NamedTuple):
    """A prompt's ids, and for each picture or clip in the order of the prompt its number and its tokens' positions."""

    ids: list[int]
    media: list[tuple[int, tuple[int, ...]]]


class MediaNames:
    """Names for the pictures and clips of one rendering."""

    def __init__(self) -> None:
        self._secret = str(secrets.randbelow(10**_DIGITS)).zfill(_DIGITS)
        self._pattern = re.compile(rf"{self._secret}([0-9]{{{_NUMBER_DIGITS}}})")

    def named(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages for the template: each picture and clip behind a text with its name."""
        count = 0
        named = []
        for message in messages:
            content = message["content"]
            if isinstance(content, list):
                parts: list[dict[str, Any]] = []
                for part in content:
                    if "media" in part:
                        parts.append({"type": "text", "text": f"{self._secret}{count:0{_NUMBER_DIGITS}}"})
                        parts.append({"type": TEMPLATE_TYPES[part["media"].kind]})
                        count += 1
                    else:
                        parts.append(part)
                content = parts
            named.append({**message, "content": content})
        return named

    def place(self, segments: Sequence[Segment], media: Sequence[Prepared], tokenizer: TextTokenizer) -> Places:
        """Put every picture's and clip's tokens in the place of its marker, and take the names out.

        Raises LookupError when the template left one out.
        """
        places = Places([], [])
        pending: int | None = None
        for text, is_marker in segments:
            if not is_marker:
                found = list(self._pattern.finditer(text))
                plain = self._pattern.sub("", text)
                places.ids.extend(tokenizer.encode_text(plain))
                if found and found[-1].end() == len(text):
                    pending = int(found[-1][1])
            elif (
                pending is not None
                and text in STAND_INS
                and (STAND_INS[text] == "clip") == bool(media[pending].seconds)
            ):
                self._expand(places, pending, media[pending], tokenizer)
                pending = None
            else:
                places.ids.append(tokenizer.marker_ids[text])
        if len(places.media) != len(media):
            raise LookupError("the template has no place for pictures or clips in such a message")
        return places

    @staticmethod
    def _expand(places: Places, number: int, media: Prepared, tokenizer: TextTokenizer) -> None:
        """The tokens of one: a picture's alone, a clip's pair by pair with its second behind each."""
        ids, markers = places.ids, tokenizer.marker_ids
        count = media.pair_tokens
        positions: list[int] = []
        for second in media.seconds or (None,):
            if second is not None:
                ids.append(markers["<|begin_of_image|>"])
            positions.extend(range(len(ids), len(ids) + count))
            ids.extend([markers["<|image|>"]] * count)
            if second is not None:
                ids.append(markers["<|end_of_image|>"])
                ids.extend(tokenizer.encode_text(f"{second:.1f} seconds"))
        places.media.append((number, tuple(positions)))
