# SPDX-License-Identifier: Apache-2.0
"""Pictures and clips made for tests."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy
from PIL import Image
from sparkpair.media.patches import Pixels


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth noise: real enough that a wrong resize or a wrong order shows."""
    coarse = numpy.random.default_rng(seed).integers(0, 256, (max(2, height // 16), max(2, width // 16), 3))
    return Image.fromarray(coarse.astype(numpy.uint8)).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def clip(
    frames: int, rate: int, width: int = 64, height: int = 48, container: str = "mp4", pixels: Pixels | None = None
) -> bytes:
    """A clip whose frames are `pixels`, or whose frame i is grey of brightness 4 i (mod 256)."""
    codec = {"mp4": "mpeg4", "mov": "mpeg4", "matroska": "mpeg4", "webm": "libvpx", "avi": "mpeg4"}[container]
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=Fraction(rate))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            shown = numpy.full((height, width, 3), 4 * number % 256, dtype=numpy.uint8) if pixels is None else pixels
            for packet in stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")):
                output.mux(packet)
        for packet in stream.encode(None):
            output.mux(packet)
    return file.getvalue()


def turned(data: bytes, degrees: int) -> bytes:
    """An MP4 or MOV clip whose track says that it is to be shown turned clockwise by so many degrees."""
    one, zero = b"\x00\x01\x00\x00", bytes(4)
    minus = b"\xff\xff\x00\x00"
    across, down = {
        90: ((zero, one), (minus, zero)),
        180: ((minus, zero), (zero, minus)),
        270: ((zero, minus), (one, zero)),
    }[degrees]
    # In version 0 of a track's header 40 bytes stand between its name and the matrix.
    start = data.index(b"tkhd") + 4 + 40
    assert data[start : start + 8] == one + zero
    matrix = b"".join((*across, zero, *down, zero))
    return data[:start] + matrix + data[start + len(matrix) :]
