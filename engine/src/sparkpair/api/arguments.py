# SPDX-License-Identifier: Apache-2.0
"""What the command line says about the HTTP side, apart from where it listens. Imports nothing heavy."""

from __future__ import annotations

import argparse
import dataclasses
from urllib.parse import urlsplit

from sparkpair.errors import UserError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The arguments that only rank 0 uses."""

    cors_origins: tuple[str, ...] = ()
    max_queued: int | None = None

    def check(self) -> None:
        """Raise UserError naming the flag that is wrong, its value and what is allowed."""
        for origin in self.cors_origins:
            parts = urlsplit(origin)
            if origin != "*" and (parts.scheme not in ("http", "https") or origin.rstrip("/").count("/") != 2):
                raise UserError(f"--cors-origin {origin}: expected an origin like https://page.example, or *")
        if self.max_queued is not None and self.max_queued < 0:
            raise UserError(f"--max-queued {self.max_queued}: at least 0")


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


def http_settings(options: argparse.Namespace) -> HttpSettings:
    """The parsed arguments. Raises UserError."""
    settings = HttpSettings(cors_origins=tuple(options.cors_origin), max_queued=options.max_queued)
    settings.check()
    return settings
