# SPDX-License-Identifier: Apache-2.0
"""Keeps finished responses in memory, so that a client can read them again and go on from them.

The newest are kept, within a number and a size. Going on from a response makes it and everything before it new again.
"""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from typing import Any

MOST_RESPONSES = 1024
MOST_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was told, the items that asked for it, and the response it went on from."""

    response: dict[str, Any]
    items: list[Any]
    previous: str | None
    size: int


class ResponseStore:
    """The responses of one server."""

    def __init__(self) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, dict[str, Any]] = {}
        self._size = 0

    def put(self, response: dict[str, Any], items: list[Any], previous: str | None, body_bytes: int) -> None:
        """Keep a response, and forget the oldest ones that then have no room. `body_bytes` is how long the request was:
        its items may be clips, which are too long to be written down only to be counted.
        """
        size = body_bytes + len(json.dumps(response["output"], ensure_ascii=False).encode())
        self._responses[response["id"]] = StoredResponse(response, items, previous, size)
        self._items.update((item["id"], item) for item in response["output"])
        self._size += size
        while len(self._responses) > MOST_RESPONSES or self._size > MOST_BYTES:
            self.delete(next(iter(self._responses)))

    def get(self, response_id: str) -> dict[str, Any] | None:
        """A response as it was told."""
        found = self._responses.get(response_id)
        return None if found is None else found.response

    def delete(self, response_id: str) -> bool:
        """Forget a response; False when it is not here."""
        found = self._responses.pop(response_id, None)
        if found is None:
            return False
        self._size -= found.size
        for item in found.response["output"]:
            del self._items[item["id"]]
        return True

    def item(self, item_id: str) -> dict[str, Any] | None:
        """One item of a stored response."""
        return self._items.get(item_id)

    def conversation(self, response_id: str) -> list[Any] | None:
        """Every item up to and including a response; None when any part of that is not here any more."""
        chain: list[StoredResponse] = []
        name: str | None = response_id
        while name is not None:
            found = self._responses.get(name)
            if found is None:
                return None
            chain.append(found)
            name = found.previous
        for link in reversed(chain):
            self._responses.move_to_end(link.response["id"])
        return [item for link in reversed(chain) for item in (*link.items, *link.response["output"])]
