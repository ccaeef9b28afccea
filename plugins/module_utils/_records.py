# SPDX-License-Identifier: Apache-2.0
"""What a host keeps of the starts that ended well, to go back to them, and of what was made there, to undo it.

Two kinds of files in the state directory: starts/TIME.json, one a start, and made.json, a list. Private to the
collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import write_json

# Enough to see what changed over some weeks; going back needs the last two.
KEPT = 10


def write_start(state_dir: str, at: str, record: Mapping[str, Any]) -> str:
    """Write down a start that ended well at the UTC time `at` (as 20261130-012000) and return the file's path.

    A record says in `pair` what all ranks together were. The same pair once more replaces its newest record, and only
    the newest records stay. Raises OSError.
    """
    place = os.path.join(state_dir, "starts")
    os.makedirs(place, mode=0o700, exist_ok=True)
    earlier = starts(state_dir)
    if earlier and earlier[0]["pair"] == record["pair"]:
        os.unlink(earlier[0]["path"])
    path = os.path.join(place, f"{at}.json")
    write_json(path, {**record, "at": at})
    for old in starts(state_dir)[KEPT:]:
        os.unlink(old["path"])
    return path


def starts(state_dir: str) -> list[dict[str, Any]]:
    """Return the records, the newest first, each with its `path`. A file that is no record is left out."""
    place = os.path.join(state_dir, "starts")
    result = []
    for name in sorted(os.listdir(place), reverse=True) if os.path.isdir(place) else []:
        path = os.path.join(place, name)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(path, encoding="utf-8") as file:
            record = json.load(file)
            result.append({**record, "pair": str(record["pair"]), "path": path})
    return result


def before_last(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the newest record of another pair than the last one, None when there is none to go back to."""
    return next((record for record in records if record["pair"] != records[0]["pair"]), None)


def add_made(state_dir: str, things: Sequence[Mapping[str, Any]]) -> bool:
    """Add what was made to the list, each a `kind` and a `name`; return whether any of it is new. Raises OSError."""
    known = made(state_dir)
    new = [dict(thing) for thing in things if thing not in known]
    if new:
        os.makedirs(state_dir, exist_ok=True)
        write_json(os.path.join(state_dir, "made.json"), [*known, *new])
    return bool(new)


def made(state_dir: str) -> list[dict[str, Any]]:
    """Return what was made on the host, in order; nothing where the list is not there or damaged."""
    with contextlib.suppress(OSError, ValueError), open(os.path.join(state_dir, "made.json"), encoding="utf-8") as file:
        return [dict(thing) for thing in json.load(file)]
    return []
