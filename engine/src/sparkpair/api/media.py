# SPDX-License-Identifier: Apache-2.0
"""From the pictures and clips that a request names to what goes into its prompt, within limits.

Everything long happens in threads and in the decoders' processes. What is prepared counts until nobody holds it any
more, the newest stay for the next turn of a conversation, and what would not fit has to wait outside.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence

from sparkpair.api.errors import ApiError, invalid, too_many_media, unavailable
from sparkpair.api.fetch import Fetcher
from sparkpair.chat.media import MediaRef
from sparkpair.media.canvas import MIN_TOKENS
from sparkpair.media.decoders import PIECE, Decoders, NoDecoder
from sparkpair.media.errors import MediaError
from sparkpair.media.limits import DECODERS, PREPARED_BYTES, MediaLimits
from sparkpair.media.patches import CHANNELS, FRAMES, MERGE, PATCH
from sparkpair.media.prepared import Prepared

BYTES_PER_TOKEN = MERGE**2 * CHANNELS * FRAMES * PATCH**2

LOW_DETAIL_TOKENS = 256
"""Tokens of a picture that need not be sharp."""

MOST_PREPARING = 128
"""Requests whose pictures are being prepared, or wait for that, at the same time."""

MOST_KEPT = PREPARED_BYTES // 4
"""Bytes of what is kept for later requests."""

MOST_SOURCES = 512 * 2**20
"""Characters of all data URLs that wait to be decoded."""


class MediaDesk:
    """Prepares the media of all requests."""

    def __init__(self, limits: MediaLimits, fetcher: Fetcher | None) -> None:
        """Without a `fetcher` only data URLs are read."""
        self._limits = limits
        self._fetcher = fetcher
        self._decoders = Decoders()
        self._pool = concurrent.futures.ThreadPoolExecutor(DECODERS, thread_name_prefix="media")
        # What is let go is counted wherever that happens, even while the lock is held here.
        self._lock = threading.RLock()
        self._kept: OrderedDict[bytes, Prepared] = OrderedDict()
        # Bytes that somebody holds, and bytes that those who are at work may come to need.
        self._held = 0
        self._expected = 0
        self._preparing = 0
        self._sources = 0

    async def prepare(self, media: Sequence[MediaRef]) -> list[Prepared]:
        """What each becomes. Their URLs are given up. Raises ApiError 400, 429 or 503."""
        self._check(media)
        if self._preparing >= MOST_PREPARING:
            raise unavailable("too many requests with pictures are being prepared; try again later")
        shares = self._shares(media)
        expected = sum(_tokens(limits) for limits in shares) * BYTES_PER_TOKEN
        sources = sum(len(ref.url) for ref in media)
        self._make_room(expected)
        if self._sources and self._sources + sources > MOST_SOURCES:
            raise too_many_media()
        self._preparing += 1
        self._expected += expected
        self._sources += sources
        try:
            budget = self._fetcher.budget(media) if self._fetcher is not None else None
            prepared = []
            for ref, limits in zip(media, shares, strict=True):
                source: str | bytes = ref.url
                if budget is not None and not ref.inline:
                    source = await budget.fetch(ref, limits)
                prepared.append(await self._prepared(ref, source, limits))
                del source
                ref.url = ""
            return prepared
        finally:
            self._preparing -= 1
            self._expected -= expected
            self._sources -= sources

    def close(self) -> None:
        """End the decoders."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._decoders.close()

    def _check(self, media: Sequence[MediaRef]) -> None:
        """Raise ApiError for what can be refused without a look inside."""
        limits = self._limits
        for kind, most, together, each in (
            ("picture", limits.pictures, limits.picture_bytes_together, limits.picture_bytes),
            ("clip", limits.clips, limits.clip_bytes_together, limits.clip_bytes),
        ):
            named = [ref for ref in media if ref.kind == kind]
            if len(named) > most:
                raise invalid(f"{named[most].where}: a request may have at most {most} {kind}s", "messages")
            total = 0
            for ref in named:
                if not ref.inline:
                    self._check_address(ref)
                    continue
                # Four characters of base64 are three bytes, less one for each sign of padding.
                size = (len(ref.url) - ref.url.find(",", 0, 512) - 1) * 3 // 4 - ref.url.count("=", -2)
                total += size
                if size > each:
                    raise refused(ref, MediaError(f"the {kind} has {size} bytes; at most {each} are allowed"))
                if total > together:
                    raise refused(ref, MediaError(f"the {kind}s have more than {together} bytes together"))

    def _check_address(self, ref: MediaRef) -> None:
        if self._fetcher is None:
            detail = "this server fetches no URLs; send the file as data:TYPE;base64,DATA"
            raise refused(ref, MediaError(detail))
        try:
            self._fetcher.check(ref.url)
        except MediaError as error:
            raise refused(ref, error) from None

    def _shares(self, media: Sequence[MediaRef]) -> list[MediaLimits]:
        """The limits of each: the tokens of a request are shared in equal parts."""
        limits = self._limits
        pictures = sum(ref.kind == "picture" for ref in media)
        clips = len(media) - pictures
        of_picture = max(MIN_TOKENS, min(limits.picture_tokens, limits.picture_tokens_together // max(1, pictures)))
        of_clip = min(limits.clip_tokens, limits.clip_tokens_together // max(1, clips))
        shares = []
        for ref in media:
            if ref.kind == "clip":
                shares.append(dataclasses.replace(limits, picture_tokens=0, clip_tokens=of_clip))
            else:
                tokens = min(of_picture, LOW_DETAIL_TOKENS) if ref.low else of_picture
                shares.append(dataclasses.replace(limits, picture_tokens=tokens, clip_tokens=0))
        return shares

    def _make_room(self, expected: int) -> None:
        """Raise ApiError 429 when so much more would be too much, even with nothing kept."""
        with self._lock:
            while self._held + self._expected + expected > PREPARED_BYTES and self._kept:
                self._kept.popitem(last=False)
        if self._held + self._expected + expected > PREPARED_BYTES:
            raise too_many_media()

    async def _prepared(self, ref: MediaRef, source: str | bytes, limits: MediaLimits) -> Prepared:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, self._decode, ref, source, limits)
        except MediaError as error:
            raise refused(ref, error) from None
        except NoDecoder:
            raise unavailable("pictures and clips cannot be decoded at the moment: no process for it starts") from None

    def _decode(self, ref: MediaRef, source: str | bytes, limits: MediaLimits) -> Prepared:
        """In a thread: what is kept of the same source, or else what a decoder makes of it."""
        key = _key(ref, source, limits)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        prepared = self._decoders.prepare(ref.kind, source, limits, base64=ref.base64)
        size = prepared.patches.nbytes
        weakref.finalize(prepared.patches, self._let_go, size)
        with self._lock:
            self._held += size
            self._kept[key] = prepared
            while sum(other.patches.nbytes for other in self._kept.values()) > MOST_KEPT:
                self._kept.popitem(last=False)
        return prepared

    def _let_go(self, size: int) -> None:
        with self._lock:
            self._held -= size


def refused(ref: MediaRef, error: MediaError) -> ApiError:
    """400, naming the message and the part."""
    return invalid(f"{ref.where}: {error}", "messages")


def _tokens(limits: MediaLimits) -> int:
    return limits.picture_tokens + limits.clip_tokens


def _key(ref: MediaRef, source: str | bytes, limits: MediaLimits) -> bytes:
    """What tells one preparation from another. In pieces, so that no other thread waits long for the interpreter."""
    digest = hashlib.sha256(f"{ref.kind} {_tokens(limits)} {type(source).__name__} {ref.base64} ".encode())
    for start in range(0, len(source), PIECE):
        piece = source[start : start + PIECE]
        digest.update(piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece)
    return digest.digest()
