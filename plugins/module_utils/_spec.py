# SPDX-License-Identifier: Apache-2.0
"""The canonical text of a rank's document and its hash.

The plan computes the hash when it writes a document and the modules compute it again when they start a rank;
both come here, so that the same document has the same hash everywhere. Private to the collection, may change
at any time.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(doc: Any) -> str:
    """Return `doc` as JSON text that depends on its content only, not on the order of its keys.

    `doc` is built of dicts with string keys, lists, strings, numbers, booleans and None. Raises TypeError for
    anything else and ValueError for a number that JSON does not have (infinity, not a number).
    """
    _refuse_foreign_keys(doc, "document")
    return json.dumps(doc, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def spec_hash(doc: Any) -> str:
    """Return the SHA-256 of `canonical_json(doc)` in UTF-8: 64 hex digits. Raises as `canonical_json`."""
    return hashlib.sha256(canonical_json(doc).encode("utf-8")).hexdigest()


def _refuse_foreign_keys(value: Any, path: str) -> None:
    """Raise TypeError for a key that is not a string: JSON would make 1 and "1" one key, silently."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path}: the key {key!r} is not a string")
            _refuse_foreign_keys(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _refuse_foreign_keys(item, f"{path}[{index}]")
