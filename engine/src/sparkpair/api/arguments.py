# SPDX-License-Identifier: Apache-2.0
"""What the command line says about the HTTP side, apart from where it listens. Imports nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from urllib.parse import urlsplit

from sparkpair.errors import UserError
from sparkpair.media.canvas import MIN_TOKENS
from sparkpair.media.limits import FRAME_TOKENS, MOST_TOGETHER, MediaLimits

LONGEST_SMOOTH_MS = 5000

MEDIA_FLAGS = {
    "--max-images": ("pictures", 0, 256),
    "--image-tokens": ("picture_tokens", 16, FRAME_TOKENS),
    "--request-image-tokens": ("picture_tokens_together", 16, MOST_TOGETHER),
    "--max-videos": ("clips", 0, 16),
    "--video-tokens": ("clip_tokens", 64, MOST_TOGETHER),
    "--request-video-tokens": ("clip_tokens_together", 64, MOST_TOGETHER),
    "--video-frames": ("clip_frames", 2, 2048),
}
"""Arguments that set a limit of MediaLimits: its name there, the least and the most."""

MEDIA_HELP = {
    "pictures": "pictures of a request at most",
    "picture_tokens": "prompt tokens of a picture at most",
    "picture_tokens_together": "prompt tokens that the pictures of a request share",
    "clips": "clips of a request at most",
    "clip_tokens": "prompt tokens of a clip at most",
    "clip_tokens_together": "prompt tokens that the clips of a request share",
    "clip_frames": "frames of a clip at most",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The arguments that only rank 0 uses."""

    cors_origins: tuple[str, ...] = ()
    max_queued: int | None = None
    api_keys: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    api_key_file: pathlib.Path | None = None
    open_metrics: bool = False
    stream_smooth_ms: int = 0
    page: bool = True
    vision: bool = True
    vision_urls: bool = False
    media: MediaLimits = dataclasses.field(default_factory=MediaLimits)

    def check(self) -> None:
        """Raise UserError naming the flag that is wrong, its value and what is allowed."""
        for origin in self.cors_origins:
            parts = urlsplit(origin)
            if origin != "*" and (parts.scheme not in ("http", "https") or origin.rstrip("/").count("/") != 2):
                raise UserError(f"--cors-origin {origin}: expected an origin like https://page.example, or *")
        if self.max_queued is not None and self.max_queued < 0:
            raise UserError(f"--max-queued {self.max_queued}: at least 0")
        if not 0 <= self.stream_smooth_ms <= LONGEST_SMOOTH_MS:
            raise UserError(f"--stream-smooth-ms {self.stream_smooth_ms}: between 0 and {LONGEST_SMOOTH_MS}")
        if self.vision_urls and not self.vision:
            raise UserError("--vision-urls needs vision, which --no-vision turns off")
        for flag, (name, least, most) in MEDIA_FLAGS.items():
            if not least <= (found := getattr(self.media, name)) <= most:
                raise UserError(f"{flag} {found}: between {least} and {most}")
        media = self.media
        if media.picture_tokens_together // max(1, media.pictures) < MIN_TOKENS:
            raise UserError(
                f"--request-image-tokens {media.picture_tokens_together}: at least {MIN_TOKENS} for each of"
                f" {media.pictures} pictures"
            )
        if min(media.clip_tokens, media.clip_tokens_together // max(1, media.clips)) < media.clip_frames // 2:
            raise UserError(f"--video-frames {media.clip_frames}: a clip needs at least one token for two frames")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    http = parser.add_argument_group("HTTP side, on rank 0")
    http.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin read replies; repeatable; * is any (default: none)",
    )
    http.add_argument(
        "--max-queued",
        type=int,
        metavar="N",
        help="requests that may wait for a free lane; further ones get 429 (default: any number may wait)",
    )
    http.add_argument(
        "--api-key-file",
        type=pathlib.Path,
        metavar="FILE",
        help="keys that clients must send, one a line as KEY or LABEL: KEY; mode 0600, read again when it changes",
    )
    http.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="a further key; repeatable. The process list shows it: prefer the file, or "
        "SPARKPAIR_API_KEY in the environment, a comma-separated list",
    )
    http.add_argument("--open-metrics", action="store_true", help="metrics need no key")
    http.add_argument(
        "--stream-smooth-ms",
        type=int,
        default=0,
        metavar="MS",
        help="hold streamed tokens back for up to so long, to tell bursts at an even pace (default: 0, off)",
    )
    http.add_argument(
        "--page", action=argparse.BooleanOptionalAction, default=True, help="the operator's page at / (default: on)"
    )
    http.add_argument(
        "--vision",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="look at pictures and clips where the checkpoint has a vision tower (default: on)",
    )
    http.add_argument(
        "--vision-urls", action="store_true", help="fetch pictures and clips from public https URLs too (default: off)"
    )
    for flag, (name, _, _) in MEDIA_FLAGS.items():
        default = getattr(MediaLimits(), name)
        http.add_argument(flag, type=int, default=default, metavar="N", help=f"{MEDIA_HELP[name]} (default: {default})")


def http_settings(options: argparse.Namespace) -> HttpSettings:
    """The parsed arguments. Raises UserError."""
    named = MEDIA_FLAGS.items()
    settings = HttpSettings(
        cors_origins=tuple(options.cors_origin),
        max_queued=options.max_queued,
        api_keys=tuple(options.api_key),
        api_key_file=options.api_key_file,
        open_metrics=options.open_metrics,
        stream_smooth_ms=options.stream_smooth_ms,
        page=options.page,
        vision=options.vision,
        vision_urls=options.vision_urls,
        media=MediaLimits(**{name: getattr(options, flag[2:].replace("-", "_")) for flag, (name, _, _) in named}),
    )
    settings.check()
    return settings
