# SPDX-License-Identifier: Apache-2.0
"""What rank 0 warns about before it serves."""

from __future__ import annotations

import pytest
from sparkpair.api.keys import KeyRing
from sparkpair.api.server import bind
from sparkpair.cli import build_parser, serve_settings
from sparkpair.http_side import warnings


def said(host: str, keys: KeyRing, *arguments: str) -> list[str]:
    settings = serve_settings(build_parser().parse_args(["serve", "MODEL", "--host", host, *arguments]))
    sockets = bind(host, 0)
    try:
        return warnings(settings, keys, sockets)
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
def test_open_server_that_others_reach_is_warned_about(host: str) -> None:
    (warning,) = said(host, KeyRing())
    assert warning.startswith("warning: ")
    assert "0.0.0.0" in warning
    assert "NO API KEY IS SET" in warning
    assert said(host, KeyRing(["k"])) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_loopback_needs_no_warning(host: str) -> None:
    assert said(host, KeyRing()) == []


def test_keys_on_the_command_line_are_warned_about() -> None:
    (warning,) = said("127.0.0.1", KeyRing(["sk-1"]), "--api-key", "sk-1")
    assert "process list" in warning
    assert "sk-1" not in warning
