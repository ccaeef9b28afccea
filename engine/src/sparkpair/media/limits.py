# SPDX-License-Identifier: Apache-2.0
"""How much media one request may bring."""

from __future__ import annotations

import dataclasses

MIB = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class MediaLimits:
    """Counts, bytes and prompt tokens of pictures and clips; `_together` is of one request."""

    pictures: int = 50
    picture_bytes: int = 10 * MIB
    picture_bytes_together: int = 64 * MIB
    picture_pixels: int = 64_000_000
    picture_tokens: int = 2048
    picture_tokens_together: int = 16_384
    clips: int = 4
    clip_bytes: int = 64 * MIB
    clip_bytes_together: int = 96 * MIB
    clip_seconds: int = 3600
    clip_frames: int = 128
    clip_tokens: int = 16_384
    clip_tokens_together: int = 32_768
