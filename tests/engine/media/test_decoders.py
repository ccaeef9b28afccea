# SPDX-License-Identifier: Apache-2.0
"""Files are decoded in a process of their own: to what a direct reading gives, or to a reason, whatever they are."""

from __future__ import annotations

import base64
import dataclasses
import os
import pathlib
import struct
import subprocess
import sys
import time
import urllib.parse
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from PIL import Image
from sparkpair.media import decoder_process
from sparkpair.media.decoders import DecoderProcess, Decoders
from sparkpair.media.errors import MediaError
from sparkpair.media.limits import MediaLimits
from sparkpair.media.prepared import Prepared, prepare

from tests.engine.media.files import clip, encoded, picture
from tests.engine.media.hostile import CLIPS, GOOD, PICTURES, data_url, huge_exif, png

LIMITS = MediaLimits()


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    made = Decoders()
    yield made
    made.close()


def same(one: Prepared, other: Prepared) -> bool:
    return (one.grid, one.seconds, one.digest) == (other.grid, other.seconds, other.digest) and numpy.array_equal(
        one.patches, other.patches
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_what_a_direct_reading_gives(decoders: Decoders, kind: str) -> None:
    data = encoded(picture(300, 200), kind)
    wanted = prepare("picture", data, LIMITS)
    assert same(decoders.prepare("picture", data_url(data), LIMITS), wanted)
    assert same(decoders.prepare("picture", data, LIMITS), wanted)
    escaped = "data:image/x," + urllib.parse.quote_from_bytes(data)
    assert same(decoders.prepare("picture", escaped, LIMITS), wanted)


def test_a_clip_is_what_a_direct_reading_gives_with_its_seconds(decoders: Decoders) -> None:
    data = clip(20, 4)
    found = decoders.prepare("clip", data_url(data, "video/mp4"), LIMITS)
    assert same(found, prepare("clip", data, LIMITS))
    assert found.seconds == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert found.pair_tokens == found.grid[1] * found.grid[2] // 4


def test_equal_pixels_have_equal_digests_whatever_file_they_come_in(decoders: Decoders) -> None:
    one, other = picture(100, 100, 1), picture(100, 100, 2)
    digests = [
        decoders.prepare("picture", encoded(image, "PNG", **options), limits).digest
        for image, options, limits in (
            (one, {}, LIMITS),
            (one, {"compress_level": 0}, LIMITS),
            (other, {}, LIMITS),
            (picture(700, 700), {}, LIMITS),
            (picture(700, 700), {}, dataclasses.replace(LIMITS, picture_tokens=100)),
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


@pytest.mark.parametrize("name", PICTURES)
def test_a_hostile_picture_is_refused_with_the_reason(decoders: Decoders, name: str) -> None:
    url, reason = PICTURES[name]
    with pytest.raises(MediaError, match=reason):
        decoders.prepare("picture", url, LIMITS)
    assert decoders.prepare("picture", GOOD, LIMITS).grid == (1, 8, 8)


@pytest.mark.parametrize("name", CLIPS)
def test_a_hostile_clip_is_refused_with_the_reason(decoders: Decoders, name: str) -> None:
    url, reason = CLIPS[name]
    with pytest.raises(MediaError, match=reason):
        decoders.prepare("clip", url, LIMITS)


def test_a_broken_note_about_rotation_does_not_spoil_the_picture(decoders: Decoders) -> None:
    assert decoders.prepare("picture", huge_exif(), LIMITS).grid == (1, 8, 8)


def test_a_picture_that_takes_too_much_memory_is_refused_and_the_next_is_read(decoders: Decoders) -> None:
    generous = dataclasses.replace(LIMITS, side_pixels=100_000, picture_pixels=10**10)
    with pytest.raises(MediaError, match="takes too much memory to decode"):
        decoders.prepare("picture", png(30_000, 30_000), generous)
    assert decoders.prepare("picture", GOOD, LIMITS).grid == (1, 8, 8)


def test_the_largest_pictures_allowed_are_read(decoders: Decoders) -> None:
    for mode, kind in (("RGB", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("CMYK", "JPEG")):
        image = Image.linear_gradient("L").resize((4096, 4096)).convert("RGB").convert(mode)
        data = encoded(image, kind, **({"compress_level": 1} if kind == "PNG" else _turned()))
        found = decoders.prepare("picture", data, dataclasses.replace(LIMITS, picture_bytes=2**28))
        assert found.patches.shape[0] <= 4 * LIMITS.picture_tokens


def test_the_largest_clip_allowed_is_read(decoders: Decoders) -> None:
    """With its base64 still in memory besides, the decoder would have too little left."""
    seen = clip(8, 4)
    padding = LIMITS.clip_bytes - len(seen)
    data = seen + struct.pack(">I", padding) + b"free" + bytes(padding - 8)
    assert same(decoders.prepare("clip", data_url(data, "video/mp4"), LIMITS), prepare("clip", seen, LIMITS))


def test_a_text_is_given_up_before_its_file_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Text(bytearray):
        """Base64 that can be watched."""

    watched: list[weakref.ref[Text]] = []

    def text() -> Text:
        made = Text(base64.b64encode(b"a clip"))
        watched.append(weakref.ref(made))
        return made

    def seen(kind: str, data: bytes, limits: MediaLimits) -> tuple[bytes, bool]:
        return data, watched[0]() is None

    monkeypatch.setattr(decoder_process, "prepare", seen)
    question = {"kind": "clip", "form": "base64", "limits": {}}
    found: Any = decoder_process._prepared(question, text())  # type: ignore[arg-type]
    assert found == (b"a clip", True)


def _turned() -> dict[str, object]:
    exif = picture(1, 1).getexif()
    exif[0x0112] = 6
    return {"exif": exif}


def test_a_file_that_takes_too_long_ends_its_process_and_the_next_is_read() -> None:
    decoders = Decoders()
    try:
        data = encoded(Image.new("RGB", (4000, 4000)), compress_level=1)
        decoders.prepare("picture", GOOD, LIMITS)
        process = decoders._idle.get_nowait()
        decoders._idle.put(process)
        started = time.monotonic()
        with pytest.raises(MediaError, match=r"the picture takes longer than 0\.05 s to decode"):
            decoders.prepare("picture", data, dataclasses.replace(LIMITS, picture_decode_s=0.05, picture_bytes=2**28))
        assert time.monotonic() - started < 5
        assert not process.alive
        assert decoders.prepare("picture", GOOD, LIMITS).grid == (1, 8, 8)
    finally:
        decoders.close()


def test_a_process_that_dies_is_replaced() -> None:
    decoders = Decoders()
    try:
        decoders.prepare("picture", GOOD, LIMITS)
        process = decoders._idle.get_nowait()
        os.kill(process.pid, 9)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        decoders._idle.put(process)
        assert decoders.prepare("picture", GOOD, LIMITS).grid == (1, 8, 8)
        dying = DecoderProcess()
        dying.start()
        os.kill(dying.pid, 9)
        # One that still seems to live when it is taken.
        dying._process.poll = lambda: None  # type: ignore[method-assign]
        decoders.close()
        decoders._idle.put(dying)
        with pytest.raises(MediaError, match="the picture made the decoder fail"):
            decoders.prepare("picture", GOOD, LIMITS)
    finally:
        decoders.close()


def test_a_process_ends_with_the_server_however_that_ends() -> None:
    program = (
        "import os, sys; from sparkpair.media.decoders import DecoderProcess; made = DecoderProcess();"
        "made.start();"
        "made.ask({'kind': 'picture', 'form': 'file', 'size': 1, 'limits': {}}, b'x', 1e6);"
        "print(made.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == -9, ran.stderr
    pid = int(ran.stdout)
    give_up = time.monotonic() + 20
    while pathlib.Path(f"/proc/{pid}").exists() and "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < give_up
