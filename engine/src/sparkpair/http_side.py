# SPDX-License-Identifier: Apache-2.0
"""From what rank 0 was told to the API's options, and what a person should be warned about."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence

from sparkpair.api.keys import ENVIRONMENT, KeyRing
from sparkpair.api.options import ApiOptions
from sparkpair.settings import ServeSettings


def api_options(settings: ServeSettings, *, vision: bool) -> ApiOptions:
    """The options of the API; `vision`: pictures can be looked at. Raises UserError when the keys are unusable."""
    http = settings.http
    return ApiOptions(
        model_dir=settings.model,
        model_name=settings.name,
        aliases=settings.aliases,
        default_max_tokens=settings.max_tokens,
        thinking_default=settings.thinking,
        cors_origins=http.cors_origins,
        max_queued=http.max_queued,
        keys=KeyRing(http.api_keys, os.environ.get(ENVIRONMENT, ""), http.api_key_file),
        open_metrics=http.open_metrics,
        page=http.page,
        stream_smooth_s=http.stream_smooth_ms / 1000,
        vision=vision,
        vision_urls=http.vision_urls,
        media=http.media,
    )


def warnings(settings: ServeSettings, keys: KeyRing, sockets: Sequence[socket.socket]) -> list[str]:
    """What to say loudly before serving on these bound sockets."""
    said = []
    reachable = [address for address in (sock.getsockname()[0] for sock in sockets) if not _is_loopback(address)]
    if reachable and not keys.required:
        said.append(
            f"warning: {', '.join(reachable)} port {settings.port} can be reached from other machines and NO API KEY IS"
            f" SET: everyone who reaches it can use it; set --api-key-file, or --host 127.0.0.1"
        )
    if settings.http.api_keys:
        said.append(f"warning: keys given by --api-key show in the process list; use --api-key-file or {ENVIRONMENT}")
    return said


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
