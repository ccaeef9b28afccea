# SPDX-License-Identifier: Apache-2.0
"""Asking the Hub, with the standard library alone: whether a repository may be read, and which files a revision has.

What is asked here decides before any long work; downloads are done by the Hub's own library (`_hub_fetch.py`). Private
to the collection, may change at any time.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

ENDPOINT = "https://huggingface.co"
_LIMIT_S = 20
_MOST_BYTES = 64 << 20
UNREACHABLE = "unreachable"


class HubError(Exception):
    """The Hub does not give what is wanted. `kind` is token, gated, absent or unreachable; the text has the remedy."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: where a file really lies is nobody's question here, and the token is for the Hub alone."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def revision(endpoint: str, repo: str, wanted: str, token: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the commit of a revision (empty: main) and its files, each with `path`, `size` and `blob`, by byte order.

    Checks with the configuration's own URL that the files may be read, too: a gated repository's list is public.
    Raises HubError.
    """
    name = urllib.parse.quote(wanted or "main", safe="")
    body = _get(endpoint, f"/api/models/{repo}/revision/{name}?blobs=true", repo, wanted, token)
    try:
        found = json.loads(body)
        commit = str(found["sha"])
        files = [
            {
                "path": str(one["rfilename"]),
                "size": int((one.get("lfs") or one)["size"]),
                "blob": str((one.get("lfs") or {}).get("sha256") or one["blobId"]),
            }
            for one in found["siblings"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise HubError(UNREACHABLE, f"{endpoint} answers about {repo} with something else than its files") from error
    files.sort(key=lambda one: one["path"].encode("utf-8", "surrogateescape"))
    if files:
        first = next((one["path"] for one in files if one["path"] == "config.json"), files[0]["path"])
        _get(endpoint, f"/{repo}/resolve/{commit}/{urllib.parse.quote(first)}", repo, wanted, token, head=True)
    return commit, files


def _get(endpoint: str, path: str, repo: str, wanted: str, token: str, head: bool = False) -> bytes:
    request = urllib.request.Request(endpoint.rstrip("/") + path, method="HEAD" if head else "GET")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=_LIMIT_S) as reply:
            return bytes(reply.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        error.close()
        if 300 <= error.code < 400 and head:
            return b""
        raise refused(error.code, endpoint, repo, wanted, token) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise HubError(UNREACHABLE, f"{endpoint} does not answer: {reason}") from None


def refused(code: int, endpoint: str, repo: str, wanted: str, token: str) -> HubError:
    """Return what an answer's status means for a person."""
    page = f"{endpoint.rstrip('/')}/{repo}"
    if code == 401 and token:
        return HubError("token", f"the Hub does not accept the token (401 for {repo}): put a valid one in its place")
    if code == 401:
        return HubError(
            "token",
            f"the Hub wants a token for {repo} (401), or there is no such repository: name a file that holds one in "
            "sparkpair_hf_token_file, or correct the repository",
        )
    if code == 403:
        return HubError(
            "gated",
            f"the token's account may not read {repo} (403): accept the terms on {page} with that account, or allow a "
            "fine-grained token to read public gated repositories",
        )
    if code == 404:
        return HubError(
            "absent",
            f"the Hub has no revision {wanted or 'main'} of {repo} (404): correct the repository or its revision",
        )
    return HubError(UNREACHABLE, f"{endpoint} answers {code} about {repo}")
