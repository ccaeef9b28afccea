# SPDX-License-Identifier: Apache-2.0
"""What the command line says about the HTTP side, apart from where it listens. Imports nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from urllib.parse import urlsplit

from sparkpair.errors import UserError

LONGEST_SMOOTH_MS = 5000


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


def http_settings(options: argparse.Namespace) -> HttpSettings:
    """The parsed arguments. Raises UserError."""
    settings = HttpSettings(
        cors_origins=tuple(options.cors_origin),
        max_queued=options.max_queued,
        api_keys=tuple(options.api_key),
        api_key_file=options.api_key_file,
        open_metrics=options.open_metrics,
        stream_smooth_ms=options.stream_smooth_ms,
        page=options.page,
    )
    settings.check()
    return settings
