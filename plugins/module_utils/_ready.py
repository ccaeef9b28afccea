# SPDX-License-Identifier: Apache-2.0
"""Asking a server whether it is ready: a GET that must be answered with 200. Private to the collection."""

from __future__ import annotations

import http.client
import os
import threading
import urllib.parse

from ansible_collections.sparkpair.serving.plugins.module_utils._key_file import authorization

# Loading leaves a machine busy; an answer that takes longer than this is none.
_LIMIT_S = 5.0
_PAUSE_S = 0.3


def is_http_url(url: str) -> bool:
    """Say whether `url` has the form of a URL that can be asked: scheme http or https, a host, a possible port."""
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_ready(url: str, key: str | None = None) -> bool:
    """Say whether `url` answers 200 now when `key` is sent. Proxies are not used: the server is near."""
    parts = urllib.parse.urlsplit(url)
    connection_class = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connection_class(parts.hostname or "", parts.port, timeout=_LIMIT_S)
    try:
        target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        connection.request("GET", target, headers={"Accept": "application/json", **authorization(key)})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class ReadyWatch:
    """Asks `url` again and again beside its owner, who waits for `descriptor` to become readable.

    Use with `with`.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = url
        self._key = key
        self._stopped = threading.Event()
        self.descriptor, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> ReadyWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A question under way ends with its own time limit; the thread then finds that nobody waits.
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.is_set():
            if is_ready(self._url, self._key):
                os.write(self._writer, b".")
                return
            self._stopped.wait(_PAUSE_S)
