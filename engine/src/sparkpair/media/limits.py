# SPDX-License-Identifier: Apache-2.0
"""How much media one request may bring."""

from __future__ import annotations

import dataclasses

from sparkpair.media.errors import MediaError

MIB = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class MediaLimits:
    """Counts, bytes, pixels and prompt tokens of pictures and clips, frames of which count as pictures.

    `_together` is of one request.
    """

    pictures: int = 50
    picture_bytes: int = 10 * MIB
    picture_bytes_together: int = 64 * MIB
    side_pixels: int = 8192
    picture_pixels: int = 16 * MIB
    picture_tokens: int = 2048
    picture_tokens_together: int = 16_384
    clips: int = 4
    clip_bytes: int = 64 * MIB
    clip_bytes_together: int = 96 * MIB
    clip_seconds: int = 3600
    clip_frames: int = 128
    clip_tokens: int = 16_384
    clip_tokens_together: int = 32_768

    def check_size(self, what: str, width: int, height: int) -> None:
        """Raise MediaError when `what` of that size is too large to be decoded."""
        if max(width, height) > self.side_pixels or width * height > self.picture_pixels:
            raise MediaError(
                f"{what} {width} x {height} pixels; at most {self.side_pixels} a side and {self.picture_pixels} in all "
                "are allowed"
            )
