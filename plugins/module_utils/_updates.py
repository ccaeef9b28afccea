# SPDX-License-Identifier: Apache-2.0
"""What an update has changed on a host since its last start that ended well, and how that is told.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FIRMWARE = ("board firmware", "network firmware")
# Which of them an OS update brings, and a person can go back from; what comes with others is not named again.
_WAYS_BACK = {"kernel": "boot the earlier kernel", "operating system": ""}


def since(last: Mapping[str, Any] | None, versions: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what is another version now than at the `last` good start, each `name`, `before` and `now`.

    What was not looked at then or is not now counts as unchanged: a look that failed is no update.
    """
    before = (last or {}).get("versions") or {}
    return [
        {"name": name, "before": str(before[name]), "now": str(now)}
        for name, now in versions.items()
        if name in before and before[name] != now
    ]


def kind(updates: Sequence[Mapping[str, str]]) -> str:
    """Return which kind of update it was, for the head of a sentence."""
    names = {update["name"] for update in updates}
    kinds = ["an OS update"] if names.difference(_FIRMWARE) else []
    kinds += ["a firmware update"] if names.intersection(_FIRMWARE) else []
    return " and ".join(kinds)


def told(at: str, updates: Sequence[Mapping[str, str]]) -> str:
    """Return one sentence about the updates since the good start at the UTC time `at`."""
    changed = ", ".join(f"{update['name']} {update['before']} is {update['now']} now" for update in updates)
    return f"there was {kind(updates)} since the last good start ({at} UTC): {changed}"


def remedy(updates: Sequence[Mapping[str, str]]) -> str:
    """Return how to find out whether an update is the cause, by going back from it where one can."""
    names = [update["name"] for update in updates]
    ways = [_WAYS_BACK.get(name, f"install the earlier {name}") for name in names if name not in _FIRMWARE]
    ways += [f"see what the vendor says of this {name}" for name in names if name in _FIRMWARE]
    return ", ".join(dict.fromkeys(filter(None, ways))) or "see what the update's notes say"
