# SPDX-License-Identifier: Apache-2.0
"""The HTTP side's arguments: a wrong one is refused by name before anything is loaded."""

from __future__ import annotations

import argparse

import pytest
from sparkpair.api.arguments import HttpSettings, add_arguments, http_settings
from sparkpair.errors import UserError


def parsed(*arguments: str) -> HttpSettings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return http_settings(parser.parse_args(arguments))


def test_origins_are_collected() -> None:
    assert parsed("--cors-origin", "https://a.example", "--cors-origin", "*").cors_origins == ("https://a.example", "*")
    assert parsed().cors_origins == ()


@pytest.mark.parametrize("origin", ["a.example", "ftp://a.example", "https://a.example/path", "", "null"])
def test_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(UserError, match="--cors-origin"):
        parsed(f"--cors-origin={origin}")


def test_queue_is_unlimited_unless_told() -> None:
    assert parsed().max_queued is None
    assert parsed("--max-queued", "0").max_queued == 0
    with pytest.raises(UserError, match="--max-queued -1: at least 0"):
        parsed("--max-queued", "-1")


def test_page_is_on_unless_told() -> None:
    assert parsed().page is True
    assert parsed("--no-page").page is False


def test_smoothing_is_off_unless_told_and_bounded() -> None:
    assert parsed().stream_smooth_ms == 0
    assert parsed("--stream-smooth-ms", "400").stream_smooth_ms == 400
    for value in ("-1", "5001"):
        with pytest.raises(UserError, match=f"--stream-smooth-ms {value}: between 0 and 5000"):
            parsed(f"--stream-smooth-ms={value}")


def test_vision_is_on_and_fetches_nothing_unless_told() -> None:
    assert (parsed().vision, parsed().vision_urls) == (True, False)
    assert parsed("--no-vision").vision is False
    with pytest.raises(UserError, match="--vision-urls needs vision"):
        parsed("--no-vision", "--vision-urls")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--max-images", "257"), "--max-images 257: between 0 and 256"),
        (("--image-tokens", "15"), "--image-tokens 15: between 16 and 4096"),
        (("--request-video-tokens", "50000"), "--request-video-tokens 50000: between 64 and 49152"),
        (("--request-image-tokens", "500"), "--request-image-tokens 500: at least 16 for each of 50 pictures"),
        (("--video-frames", "2048", "--video-tokens", "900"), "--video-frames 2048: a clip needs at least one token"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_limits_of_media_are_bounded_and_leave_something_for_each(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(UserError, match=told):
        parsed(*arguments)


def test_limits_of_media_are_taken() -> None:
    media = parsed("--max-images", "3", "--video-frames", "16", "--image-tokens", "400").media
    assert (media.pictures, media.clip_frames, media.picture_tokens) == (3, 16, 400)
