# SPDX-License-Identifier: Apache-2.0
"""What the person who starts the server decides about its API."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sparkpair.api.keys import KeyRing
from sparkpair.media.limits import MediaLimits

MIB = 2**20

ANY_MODEL = "*"
"""The alias that accepts every model name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Settings of the API; times in seconds, sizes in bytes.

    `model_dir` holds the checkpoint's tokenizer, template and generation defaults. `default_max_tokens` is
    the reply budget of a request that names none, reasoning included. `thinking_default` and
    `default_effort` (`low`, `high`, `max`; None: the template's own) apply where a request says nothing.
    `keepalive_s` 0 turns the comments of idle streams off. While a call is being written a stream says so every
    `call_beat_s`. `cors_origins` are the web origins whose pages may read
    replies (`*`: any). `max_queued` requests may wait for a free lane, further ones are refused (None: no limit).
    `stream_smooth_s` is for how long a streamed token may be held back to even out bursts (0: none is).
    A client has `head_timeout_s` to send a request's headers, must send `body_rate` bytes of its body in every
    `body_timeout_s`, and is gone when it takes nothing of a reply for `reader_timeout_s`.
    `page` serves the operator's page at `/`. Compiling a schema or grammar may take `form_cpu_s` of processor time.
    `vision`: the engine can look at pictures and clips, within the limits of `media`; with `vision_urls` also at those
    behind https URLs, which are then fetched.
    With `keys`, every route but health needs one; `open_metrics` lifts that for the metrics.
    """

    model_dir: Path
    model_name: str
    aliases: tuple[str, ...] = ()
    default_max_tokens: int = 32768
    thinking_default: bool = True
    default_effort: str | None = None
    keepalive_s: float = 15.0
    call_beat_s: float = 2.0
    max_body_bytes: int = 96 * MIB
    cors_origins: tuple[str, ...] = ()
    max_queued: int | None = None
    keys: KeyRing = dataclasses.field(default_factory=KeyRing)
    open_metrics: bool = False
    head_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    body_rate: int = 4096
    reader_timeout_s: float = 60.0
    stream_smooth_s: float = 0.0
    page: bool = True
    vision: bool = False
    vision_urls: bool = False
    media: MediaLimits = dataclasses.field(default_factory=MediaLimits)
    form_cpu_s: int = 60
