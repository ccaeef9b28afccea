# SPDX-License-Identifier: Apache-2.0
"""Taking secrets out of text before it leaves a host.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

import re
from collections.abc import Collection

GONE = "(removed)"
# Shorter ones would take ordinary words out of a log.
_LEAST = 6
_SHAPES = (
    # Tokens of the Hub, of code hosts and of API services, known by how they begin.
    re.compile(r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-)[A-Za-z0-9_-]{8,}"),
    re.compile(r"(?i)(?<=bearer )\S+"),
    re.compile(r"(?i)(?<=authorization: basic )\S+"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(
        r"(?i)(?<![A-Za-z])((?:[A-Z0-9]+[_-])*(?:TOKEN|PASSWORD|PASSWD|SECRET|API[_-]?KEY|CREDENTIALS?)"
        r"[\"']?\s*[=:]\s*[\"']?)(?!\(removed\))[^\s\"',}]+"
    ),
)


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """Return `text` without the known `secrets` and without what is shaped like one or stands where one does."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST:
            text = text.replace(secret, GONE)
    for shape in _SHAPES:
        text = shape.sub(lambda match: (match[1] if match.re.groups else "") + GONE, text)
    return text
