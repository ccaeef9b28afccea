# SPDX-License-Identifier: Apache-2.0
"""Still pictures: JPEG, PNG and WebP bytes to patches."""

from __future__ import annotations

import io

import numpy
from PIL import Image, ImageOps, UnidentifiedImageError

from sparkpair.media.canvas import TOKEN_FRAMES, fit
from sparkpair.media.errors import MediaError
from sparkpair.media.limits import MediaLimits
from sparkpair.media.patches import Grid, Pixels, cut, place

FORMATS = ("JPEG", "PNG", "WEBP")

# Pillow's own guard warns and is global; sizes are checked here before a pixel is decoded.
Image.MAX_IMAGE_PIXELS = None


def read_picture(data: bytes, limits: MediaLimits) -> tuple[Pixels, Grid]:
    """Patches and grid of a picture, turned upright by its EXIF note. Raises MediaError saying what is wrong."""
    if len(data) > limits.picture_bytes:
        raise MediaError(f"the picture has {len(data)} bytes; at most {limits.picture_bytes} are allowed")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > limits.picture_pixels:
                raise MediaError(
                    f"the picture has {width} x {height} pixels; at most {limits.picture_pixels} are allowed"
                )
            upright = ImageOps.exif_transpose(opened).convert("RGB")
    except UnidentifiedImageError:
        raise MediaError("the picture is not a JPEG, PNG or WebP file") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise MediaError(f"the picture is damaged: {error}") from None
    frame = fit_frame(upright, TOKEN_FRAMES, limits.picture_tokens)
    return cut([frame] * TOKEN_FRAMES)


def fit_frame(picture: Image.Image, frames: int, max_tokens: int) -> Pixels:
    """The picture's canvas, [height, width, 3]; `frames` frames like it share `max_tokens`."""
    canvas = fit(frames, picture.height, picture.width, max_tokens)
    size = (canvas.content_width, canvas.content_height)
    if size != picture.size:
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return place(numpy.asarray(picture, dtype=numpy.uint8), canvas)
