# SPDX-License-Identifier: Apache-2.0
"""How much media one request may bring, and how much memory all of it may take."""

from __future__ import annotations

import dataclasses

from sparkpair.media.errors import MediaError

MIB = 2**20

# Tokens of a picture, or of a pair of a clip's frames, that are encoded in one pass.
FRAME_TOKENS = 4096

# Pixels of all pictures and clips of requests that wait or run; a request has about 5 KiB of them for every token.
PREPARED_BYTES = 512 * MIB

# What the tokens of a request's pictures, and of its clips, can be set to: both together fit into the bytes above.
MOST_TOGETHER = 49_152

# Processes that decode at the same time, and what one of them takes at the most.
DECODERS = 2
DECODER_BYTES = 384 * MIB


@dataclasses.dataclass(frozen=True, slots=True)
class MediaLimits:
    """Counts, bytes, pixels and prompt tokens of pictures and clips, frames of which count as pictures.

    `_together` is of one request. `_decode_s` is for how long a picture or a clip may be decoded.
    """

    pictures: int = 50
    picture_bytes: int = 10 * MIB
    picture_bytes_together: int = 64 * MIB
    side_pixels: int = 8192
    picture_pixels: int = 16 * MIB
    picture_tokens: int = 2048
    picture_tokens_together: int = 16_384
    picture_decode_s: float = 10.0
    clips: int = 4
    clip_bytes: int = 64 * MIB
    clip_bytes_together: int = 96 * MIB
    clip_seconds: int = 3600
    clip_frames: int = 128
    clip_tokens: int = 16_384
    clip_tokens_together: int = 32_768
    clip_decode_s: float = 120.0

    def check_size(self, what: str, width: int, height: int) -> None:
        """Raise MediaError when `what` of that size is empty, or too large to be decoded."""
        if min(width, height) < 1:
            raise MediaError(f"{what} {width} x {height} pixels")
        if max(width, height) > self.side_pixels or width * height > self.picture_pixels:
            raise MediaError(
                f"{what} {width} x {height} pixels; at most {self.side_pixels} a side and {self.picture_pixels} in all "
                "are allowed"
            )
