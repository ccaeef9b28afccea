# SPDX-License-Identifier: Apache-2.0
"""On how large a canvas a picture or a clip's frames are placed: whole tokens, within a budget, never enlarged."""

from __future__ import annotations

import dataclasses
import math

# A token covers this many pixels each way, and two frames.
TOKEN_PIXELS = 28
TOKEN_FRAMES = 2

# A picture below this many tokens is enlarged.
MIN_TOKENS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Canvas:
    """`height` x `width` pixels, of which the picture fills `content_height` x `content_width` at the top left."""

    height: int
    width: int
    content_height: int
    content_width: int

    @property
    def tokens(self) -> int:
        """Prompt tokens of one picture, or of one pair of frames."""
        return (self.height // TOKEN_PIXELS) * (self.width // TOKEN_PIXELS)


def _align(pixels: int) -> int:
    return -(-pixels // TOKEN_PIXELS) * TOKEN_PIXELS


def fit(frames: int, height: int, width: int, max_tokens: int) -> Canvas:
    """The canvas for `frames` frames (a still picture counts as 2) of `height` x `width` pixels.

    All frames together take at most `max_tokens` tokens. Raises ValueError when not even one token a pair fits.
    """
    token = TOKEN_FRAMES * TOKEN_PIXELS**2
    least, most = MIN_TOKENS * token, max_tokens * token
    aligned_frames = max(TOKEN_FRAMES, round(frames / TOKEN_FRAMES) * TOKEN_FRAMES)
    canvas = _align(height), _align(width)
    if aligned_frames * canvas[0] * canvas[1] < least:
        scale = math.sqrt(least / (frames * height * width))
        canvas = _align(math.ceil(height * scale)), _align(math.ceil(width * scale))
    if aligned_frames * canvas[0] * canvas[1] > most:
        canvas = _largest(aligned_frames, height, width, most)
    scale = min(canvas[0] / height, canvas[1] / width)
    if TOKEN_FRAMES * height * width >= least:
        scale = min(1.0, scale)
    return Canvas(
        *canvas,
        content_height=max(1, min(canvas[0], math.floor(height * scale))),
        content_width=max(1, min(canvas[1], math.floor(width * scale))),
    )


def _largest(frames: int, height: int, width: int, most: int) -> tuple[int, int]:
    """The canvas of the tallest content of the same shape whose frames stay within `most` pixels."""
    if frames * TOKEN_PIXELS**2 > most:
        raise ValueError(f"{frames} frames need at least {frames // TOKEN_FRAMES} tokens")

    def canvas(content: int) -> tuple[int, int]:
        return _align(content), _align(max(1, width * content // height))

    low, high = 0, height
    while low < high:
        middle = (low + high + 1) // 2
        tall, wide = canvas(middle)
        if frames * tall * wide <= most:
            low = middle
        else:
            high = middle - 1
    return canvas(low) if low else (TOKEN_PIXELS, TOKEN_PIXELS)
