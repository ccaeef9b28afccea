# SPDX-License-Identifier: Apache-2.0
"""Pictures and clips become the patches of the reference; what cannot be used is refused in the client's words."""

from __future__ import annotations

import dataclasses
import warnings

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sparkpair.media.canvas import Canvas, fit
from sparkpair.media.clips import read_clip, sample
from sparkpair.media.errors import MediaError
from sparkpair.media.limits import FRAME_TOKENS, MediaLimits
from sparkpair.media.patches import cut, normalise
from sparkpair.media.pictures import read_picture

from tests.engine.media.files import clip, encoded, picture, turned

LIMITS = MediaLimits()


@pytest.mark.parametrize(
    ("frames", "height", "width", "budget", "canvas", "tokens"),
    [
        (2, 1080, 1920, 2048, Canvas(952, 1680, 945, 1680), 2040),
        (2, 1080, 1920, 8000, Canvas(1092, 1932, 1080, 1920), 2691),
        (2, 480, 640, 2048, Canvas(504, 644, 480, 640), 414),
        (2, 480, 640, 8000, Canvas(504, 644, 480, 640), 414),
        (2, 100, 100, 2048, Canvas(112, 112, 112, 112), 16),
        (2, 4000, 3000, 2048, Canvas(1456, 1092, 1456, 1092), 2028),
        (2, 4000, 3000, 8000, Canvas(2884, 2156, 2874, 2156), 7931),
    ],
)
def test_the_published_sizes(frames: int, height: int, width: int, budget: int, canvas: Canvas, tokens: int) -> None:
    found = fit(frames, height, width, budget)
    assert found == canvas
    assert found.tokens == tokens


def test_the_published_size_of_a_clip() -> None:
    found = fit(128, 720, 1280, 16_384)
    assert (found.height, found.width, 64 * found.tokens) == (336, 588, 16_128)


@given(st.sampled_from([2, 4, 30, 128]), st.integers(1, 5000), st.integers(1, 5000), st.integers(64, 9000))
@settings(max_examples=200, deadline=None)
def test_a_canvas_holds_its_content_in_whole_tokens_within_the_budget(
    frames: int, height: int, width: int, budget: int
) -> None:
    found = fit(frames, height, width, budget)
    assert found.height % 28 == found.width % 28 == 0
    assert frames // 2 * found.tokens <= budget
    assert 1 <= found.content_height <= found.height
    assert 1 <= found.content_width <= found.width


def test_a_budget_below_one_token_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="128 frames need at least 64 tokens"):
        fit(128, 100, 100, 63)


@pytest.mark.parametrize("size", [(64, 48), (640, 480), (333, 1001), (30, 31), (1920, 1080), (5, 400)], ids=str)
def test_patch_values_equal_the_references(size: tuple[int, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil

        image = picture(*size)
        expected = Glm5NextImageProcessorPil(max_image_tokens=2048)(image, return_tensors="np")
    patches, grid = read_picture(encoded(image), LIMITS)
    assert grid == tuple(expected["image_grid_thw"][0])
    assert numpy.abs(normalise(patches) - expected["pixel_values"]).max() < 1e-5


def test_patches_run_through_pairs_then_merge_blocks_then_inside_and_values_by_channel() -> None:
    height, width = 56, 84
    frames = []
    for number in range(4):
        rows, columns = numpy.mgrid[:height, :width]
        frames.append(numpy.stack([rows, columns, numpy.full_like(rows, number)], axis=-1).astype(numpy.uint8))
    patches, grid = cut(frames)
    assert grid == (2, 4, 6)
    assert patches.shape == (48, 1176)
    values = patches.reshape(48, 3, 2, 14, 14)
    tops, lefts, times = values[:, 0, 0, 0, 0], values[:, 1, 0, 0, 0], values[:, 2, :, 0, 0]
    assert [(int(top) // 14, int(left) // 14) for top, left in zip(tops, lefts, strict=True)][:9] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (0, 4),
    ]  # fmt: skip
    assert times[0].tolist() == [0, 1]
    assert times[24].tolist() == [2, 3]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_three_formats_are_told_by_their_bytes(kind: str) -> None:
    patches, grid = read_picture(encoded(picture(56, 112), kind), LIMITS)
    assert grid == (1, 12, 6)
    assert patches.shape == (72, 1176)


def test_a_picture_is_turned_upright_by_its_exif_note() -> None:
    image = picture(140, 280)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise to show
    turned, grid = read_picture(encoded(image, exif=exif), LIMITS)
    expected, expected_grid = read_picture(encoded(image.transpose(Image.Transpose.ROTATE_270)), LIMITS)
    assert grid == expected_grid == (1, 10, 20)
    assert numpy.array_equal(turned, expected)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "I;16", "CMYK", "1"])
def test_every_colour_mode_is_read(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    image = (
        picture(112, 112).convert("L").convert("I").convert("I;16")
        if mode == "I;16"
        else picture(112, 112).convert(mode)
    )
    patches, grid = read_picture(encoded(image, kind), LIMITS)
    assert grid == (1, 8, 8)
    assert patches.shape == (64, 1176)


def test_a_cameras_jpeg_with_previews_behind_it_is_a_picture() -> None:
    data = encoded(picture(112, 112), "MPO", save_all=True, append_images=[picture(56, 56)])
    assert read_picture(data, LIMITS)[1] == (1, 8, 8)


def test_what_is_transparent_is_white() -> None:
    image = picture(112, 112).convert("RGBA")
    image.putalpha(0)
    patches, _ = read_picture(encoded(image), LIMITS)
    assert (patches == 255).all()


def png_of(width: int, height: int) -> bytes:
    """A PNG that says it is as large as that and holds nothing: a bomb as it looks from outside."""
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


ANIMATED = encoded(picture(40, 40), "WEBP", save_all=True, append_images=[picture(40, 40, 1)], duration=100)
WHOLE = encoded(picture(200, 200), "JPEG")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a JPEG, PNG or WebP file"),
        (b"hello", "not a JPEG, PNG or WebP file"),
        (encoded(picture(40, 40), "GIF"), "not a JPEG, PNG or WebP file"),
        (encoded(picture(40, 40), "TIFF"), "not a JPEG, PNG or WebP file"),
        (WHOLE[: len(WHOLE) // 2], "the picture is damaged: "),
        (png_of(30, 30), "the picture is damaged: "),
        (png_of(60_000, 60_000), "has 60000 x 60000 pixels; at most 8192 a side and 16777216 in all are allowed"),
        (png_of(8000, 8000), "has 8000 x 8000 pixels; at most 8192 a side"),
        (ANIMATED, "the picture is animated"),
        (bytes(LIMITS.picture_bytes + 1), "has 10485761 bytes; at most 10485760 are allowed"),
    ],
    ids=["empty", "text", "gif", "tiff", "half a jpeg", "no pixels", "bomb", "large", "animated", "too many bytes"],
)
def test_a_picture_that_cannot_be_used_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MediaError, match=reason):
        read_picture(data, LIMITS)


@pytest.mark.parametrize(
    ("total", "rate", "duration", "most", "expected"),
    [
        # Two a second: every 15th frame of 30.
        (120, 30.0, 4.0, 128, [0, 15, 30, 45, 60, 75, 90, 105]),
        # The first frame at or after each half second.
        (75, 25.0, 3.0, 128, [0, 13, 25, 38, 50, 63]),
        # 2.9 s: five frames are wanted, four half seconds lie before the last whole second.
        (29, 10.0, 2.9, 128, [0, 3, 7, 11, 15, 15]),
        # Fewer frames than wanted: all of them.
        (4, 1.0, 4.0, 128, [0, 1, 2, 3]),
        # Too many: spread over the whole clip.
        (3000, 30.0, 100.0, 4, [0, 999, 1999, 2999]),
        # Shorter than a second: one frame, repeated to make a pair.
        (6, 10.0, 0.6, 128, [0, 0]),
        (1, 30.0, 1 / 30, 128, [0, 0]),
    ],
)
def test_frames_are_sampled_twice_a_second(
    total: int, rate: float, duration: float, most: int, expected: list[int]
) -> None:
    assert sample(total, rate, duration, most) == expected


@given(st.integers(1, 4000), st.floats(0.5, 120.0), st.integers(2, 128))
@settings(max_examples=200, deadline=None)
def test_a_sample_is_even_in_order_and_within_its_bounds(total: int, rate: float, most: int) -> None:
    found = sample(total, rate, total / rate, most)
    assert len(found) % 2 == 0
    assert 2 <= len(found) <= most + most % 2
    assert found == sorted(found)
    assert 0 <= found[0] <= found[-1] < total


@pytest.mark.parametrize("container", ["mp4", "mov", "matroska", "webm"])
def test_a_clip_becomes_pairs_of_its_sampled_frames(container: str) -> None:
    found = read_clip(clip(50, 10, container=container), LIMITS)
    # Ten frames, 0, 5, .. 45; brightness 4 a frame.
    assert found.grid == (5, 4, 6)
    assert found.seconds == (0.0, 1.0, 2.0, 3.0, 4.0)
    pairs = found.patches.reshape(5, -1, 3, 2, 14, 14)[:, 0, :, :, 0, 0].mean(axis=1)
    assert numpy.abs(pairs.flatten() - 20.0 * numpy.arange(10)).max() < 8


def test_a_long_clip_is_spread_over_few_frames_within_its_tokens() -> None:
    limits = dataclasses.replace(LIMITS, clip_frames=6, clip_tokens=30)
    found = read_clip(clip(80, 4, 320, 240), limits)
    times, rows, columns = found.grid
    assert times == 3
    assert times * rows * columns // 4 <= 30
    assert found.seconds == (0.0, 7.75, 15.75)


CLIP = clip(20, 10)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "damaged or not an MP4"),
        (b"hello" * 100, "damaged or not an MP4"),
        (CLIP[:400], "damaged or not an MP4"),
        (clip(10, 10, container="avi"), "is a avi file; MP4, MOV, WebM and MKV can be read"),
        (encoded(picture(40, 40)), "can be read"),
        (bytes(LIMITS.clip_bytes + 1), "bytes; at most 67108864 are allowed"),
    ],
    ids=["empty", "text", "half", "avi", "picture", "too many bytes"],
)
def test_a_clip_that_cannot_be_used_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(MediaError, match=reason):
        read_clip(data, LIMITS)


def test_a_clip_longer_than_allowed_is_refused() -> None:
    with pytest.raises(MediaError, match="lasts 20 s; at most 10 s are allowed"):
        read_clip(clip(20, 1), dataclasses.replace(LIMITS, clip_seconds=10))


def test_frames_larger_than_allowed_are_refused() -> None:
    with pytest.raises(MediaError, match="frames have 64 x 48 pixels; at most 8192 a side and 1000 in all"):
        read_clip(CLIP, dataclasses.replace(LIMITS, picture_pixels=1000))


@pytest.mark.parametrize(("degrees", "corner"), [(90, "top right"), (180, "bottom right"), (270, "bottom left")])
def test_a_clip_is_shown_upright_as_its_track_says(degrees: int, corner: str) -> None:
    # The upper left quarter of the stored frames is bright.
    pixels = numpy.zeros((112, 224, 3), dtype=numpy.uint8)
    pixels[:56, :112] = 255
    frames = read_clip(turned(clip(4, 2, 224, 112, pixels=pixels), degrees), LIMITS)
    _, rows, columns = frames.grid
    assert (rows > columns) is (degrees != 180)
    values = frames.patches.reshape(2, rows // 2, columns // 2, 2, 2, 3, 2, 14, 14)[0]
    bright = values.astype(float).mean(axis=(2, 3, 4, 5, 6, 7)) > 128
    down, across = (
        int(places.mean() > half / 2 - 0.5) for places, half in zip(bright.nonzero(), bright.shape, strict=True)
    )
    assert f"{('top', 'bottom')[down]} {('left', 'right')[across]}" == corner


def test_a_grey_picture_of_16_bits_keeps_its_brightness() -> None:
    half = Image.fromarray(numpy.full((56, 56), 32768, dtype=numpy.uint16))
    patches, _ = read_picture(encoded(half), LIMITS)
    assert abs(int(patches[0, 0]) - 128) <= 1


def test_a_pair_of_frames_is_never_larger_than_one_pass_of_the_tower() -> None:
    limits = dataclasses.replace(LIMITS, clip_tokens=40_000)
    found = read_clip(clip(2, 1, 2048, 2048), limits)
    assert FRAME_TOKENS * 0.9 < found.grid[1] * found.grid[2] // 4 <= FRAME_TOKENS
