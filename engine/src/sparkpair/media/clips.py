# SPDX-License-Identifier: Apache-2.0
"""Video clips: MP4, MOV, WebM and Matroska bytes to patches of sampled frames, with a time for every pair of them."""

from __future__ import annotations

import dataclasses
import io
from fractions import Fraction
from typing import Any

import av
import numpy
from PIL import Image

from sparkpair.media.canvas import TOKEN_FRAMES
from sparkpair.media.errors import MediaError
from sparkpair.media.limits import FRAME_TOKENS, MediaLimits
from sparkpair.media.patches import Grid, Pixels, cut
from sparkpair.media.pictures import fit_frame

# The containers' names as FFmpeg knows them: one reader serves MP4 and MOV, another WebM and Matroska.
_READERS = ("mov", "matroska")

FRAMES_PER_SECOND = 2
UNKNOWN_RATE = 24.0

# By how many degrees a frame has to be turned, counted against the clock.
_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}


@dataclasses.dataclass(frozen=True, slots=True)
class Clip:
    """Patches and grid of a clip, and the second at which each of its pairs of frames begins."""

    patches: Pixels
    grid: Grid
    seconds: tuple[float, ...]


def sample(total: int, rate: float, duration: float, most: int) -> list[int]:
    """Which of `total` frames are looked at, an even number of them, in order.

    The first frame at or after every half second, up to the last whole second; spaced evenly where that gives other
    than int(2 * duration) frames or more than `most`.
    """
    wanted = min(int(duration * FRAMES_PER_SECOND), most)
    chosen: list[int] = []
    for index in range(total):
        if chosen and len(chosen) / FRAMES_PER_SECOND >= int(duration):
            break
        if index / rate >= len(chosen) / FRAMES_PER_SECOND:
            chosen.append(index)
    if total < wanted or len(chosen) > wanted:
        chosen = _spaced(0, total - 1, wanted)
    elif len(chosen) < wanted:
        chosen = _spaced(chosen[0], chosen[-1], wanted)
    chosen = sorted(set(chosen)) or [0]
    return chosen + chosen[-1:] * (len(chosen) % 2)


def _spaced(first: int, last: int, count: int) -> list[int]:
    return [int(place) for place in numpy.linspace(first, last, count)]


def read_clip(data: bytes, limits: MediaLimits) -> Clip:
    """Patches of a clip's sampled frames. Raises MediaError saying what is wrong with it."""
    if len(data) > limits.clip_bytes:
        raise MediaError(f"the clip has {len(data)} bytes; at most {limits.clip_bytes} are allowed")
    try:
        total, rate, duration = _measure(data)
        if duration > limits.clip_seconds:
            raise MediaError(f"the clip lasts {duration:.0f} s; at most {limits.clip_seconds} s are allowed")
        chosen = sample(total, rate, duration, limits.clip_frames)
        patches, grid = _decode(data, chosen, limits)
    except (av.error.FFmpegError, ValueError) as error:
        raise MediaError(f"the clip is damaged or not an MP4, MOV, WebM or MKV file: {error}") from None
    return Clip(patches, grid, tuple(index / rate for index in chosen[::TOKEN_FRAMES]))


def _open(data: bytes) -> Any:
    container = av.open(io.BytesIO(data))
    if container.format.name.split(",")[0] not in _READERS:
        container.close()
        raise MediaError(f"the clip is a {container.format.name} file; MP4, MOV, WebM and MKV can be read")
    if not container.streams.video:
        container.close()
        raise MediaError("the clip has no picture track")
    return container


def _measure(data: bytes) -> tuple[int, float, float]:
    """Frames, frames a second, and seconds of the first picture track; frames are counted, as headers may be wrong."""
    with _open(data) as container:
        stream = container.streams.video[0]
        total = sum(1 for packet in container.demux(stream) if packet.size)
        rate = float(stream.average_rate or Fraction(0)) or UNKNOWN_RATE
    if total == 0:
        raise MediaError("the clip has no frames")
    return total, rate, total / rate


def _decode(data: bytes, chosen: list[int], limits: MediaLimits) -> tuple[Pixels, Grid]:
    """Patches and grid of the chosen frames, cut pair by pair as they come."""
    budget = min(limits.clip_tokens, FRAME_TOKENS * len(chosen) // TOKEN_FRAMES)
    cutter = _Cutter(len(chosen))
    with _open(data) as container:
        container.streams.video[0].thread_type = "NONE"
        for index, frame in enumerate(container.decode(container.streams.video[0])):
            limits.check_size("the clip's frames have", frame.width, frame.height)
            if index == chosen[cutter.count]:
                canvas = fit_frame(_upright(frame), len(chosen), budget)
                while cutter.count < len(chosen) and chosen[cutter.count] == index:
                    cutter.add(canvas)
            if cutter.count == len(chosen):
                break
    return cutter.finish()


def _upright(frame: Any) -> Image.Image:
    """A frame as its display matrix says that it is to be shown; only quarter turns are known."""
    picture: Image.Image = frame.to_image()
    turn = _TURNS.get(round(frame.rotation) % 360)
    return picture if turn is None else picture.transpose(turn)


class _Cutter:
    """Takes canvases one by one; never holds more of them than a pair beside the patches."""

    def __init__(self, expected: int) -> None:
        self.count = 0
        self._pairs = expected // TOKEN_FRAMES
        self._first: Pixels | None = None
        self._last: Pixels | None = None
        self._patches: Pixels | None = None
        self._grid: Grid = (0, 0, 0)

    def add(self, canvas: Pixels) -> None:
        """The next canvas. Raises MediaError when it has another size than those before."""
        if self._last is not None and canvas.shape != self._last.shape:
            raise MediaError("the clip's frames change their size")
        self._last = canvas
        if self._first is None:
            self._first = canvas
        else:
            self._cut([self._first, canvas])
            self._first = None
        self.count += 1

    def _cut(self, pair: list[Pixels]) -> None:
        patches, (_, height, width) = cut(pair)
        if self._patches is None:
            self._grid = (self._pairs, height, width)
            self._patches = numpy.empty((self._pairs * len(patches), patches.shape[1]), dtype=numpy.uint8)
        start = self.count // TOKEN_FRAMES * len(patches)
        self._patches[start : start + len(patches)] = patches

    def finish(self) -> tuple[Pixels, Grid]:
        """All patches. A track that ends early stands still at its last frame."""
        if self._last is None:
            raise MediaError("no frame of the clip can be decoded")
        while self.count < self._pairs * TOKEN_FRAMES:
            self.add(self._last)
        assert self._patches is not None
        return self._patches, self._grid
