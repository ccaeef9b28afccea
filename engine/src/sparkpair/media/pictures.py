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
            limits.check_size("the picture has", *opened.size)
            # A camera's JPEG may carry previews behind the picture; that is no animation.
            if opened.format != "MPO" and getattr(opened, "n_frames", 1) > 1:
                raise MediaError("the picture is animated; send a clip or a single picture")
            upright = _on_white(ImageOps.exif_transpose(opened))
    except UnidentifiedImageError:
        raise MediaError("the picture is not a JPEG, PNG or WebP file") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise MediaError(f"the picture is damaged: {error}") from None
    frame = fit_frame(upright, TOKEN_FRAMES, limits.picture_tokens)
    return cut([frame] * TOKEN_FRAMES)


def _on_white(picture: Image.Image) -> Image.Image:
    """RGB, with white where the picture is transparent."""
    if picture.mode.startswith("I"):
        # Grey of 16 bits, which a plain conversion would clip to white.
        picture = Image.fromarray((numpy.asarray(picture) >> 8).astype(numpy.uint8))
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    shown = picture.convert("RGBA")
    sheet = Image.new("RGB", shown.size, "white")
    sheet.paste(shown, mask=shown)
    return sheet


def fit_frame(picture: Image.Image, frames: int, max_tokens: int) -> Pixels:
    """The picture's canvas, [height, width, 3]; `frames` frames like it share `max_tokens`."""
    canvas = fit(frames, picture.height, picture.width, max_tokens)
    size = (canvas.content_width, canvas.content_height)
    if size != picture.size:
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return place(numpy.asarray(picture, dtype=numpy.uint8), canvas)
