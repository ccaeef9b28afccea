# SPDX-License-Identifier: Apache-2.0
"""GET /: the operator's page, one file without outside assets.

It needs no key, because by itself it shows nothing: it asks for figures with the key that its reader types in. The
policy in its header lets it run its own script and talk to this server, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re

from fastapi import APIRouter, Response

router = APIRouter()

PATH = "/"

_HTML = importlib.resources.files("sparkpair").joinpath("data/page.html").read_text("utf-8")


def _digests(element: str) -> str:
    """What the policy calls the inline elements of a kind: their hashes."""
    contents = re.findall(rf"<{element}>(.*?)</{element}>", _HTML, re.DOTALL)
    return " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" for content in contents
    )


HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; script-src {_digests('script')}; style-src {_digests('style')}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@router.api_route(PATH, methods=["GET", "HEAD"])
async def page() -> Response:
    """The page."""
    return Response(_HTML, media_type="text/html; charset=utf-8", headers=HEADERS)
