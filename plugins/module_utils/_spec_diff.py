# SPDX-License-Identifier: Apache-2.0
"""A rank's document before and after, as --diff shows it: complete but for the values of secret variables.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import Any

_SECRET_ENDINGS = ("_TOKEN", "_KEY", "_SECRET", "_PASSWORD")
_SHORTEST_SECRET = 8


def secret_names(env: dict[str, Any], declared: Collection[str]) -> set[str]:
    """Return the names of variables whose values must not be shown: the declared ones and those that look it."""
    return {*declared, *(name for name in env if str(name).upper().endswith(_SECRET_ENDINGS))}


def secret_values(spec: Any, declared: Collection[str]) -> set[str]:
    """Return the values in a document, or in what was given for one, that must not be shown anywhere.

    Short ones are left out: no secret is that short, and hiding every "1" or "true" would make all else unreadable.
    """
    env = _env(spec if isinstance(spec, dict) else None)
    values = {str(env[name]) for name in secret_names(env, declared) if name in env}
    return {value for value in values if len(value) >= _SHORTEST_SECRET}


def last_spec(directory: str) -> dict[str, Any] | None:
    """Return the document that the rank in `directory` was last started with, or None if unreadable."""
    try:
        with open(os.path.join(directory, "spec.json"), encoding="utf-8") as file:
            doc = json.load(file)
    except (OSError, ValueError):
        return None
    return doc if isinstance(doc, dict) else None


def describe(directory: str, before: str, spec: dict[str, Any] | None, secret: set[str]) -> dict[str, Any]:
    """Return the `diff` of a result: from the state in words and spec.json in `directory` to `spec` running.

    `spec` None means that nothing is left. A secret that changes is said to change.
    """
    old = last_spec(directory)
    secret = secret | secret_names(_env(old), ())
    changed = {name for name in secret if old and _env(old).get(name) != _env(spec).get(name)}
    header = os.path.join(directory, "spec.json")
    return {
        "before_header": header,
        "after_header": header,
        "before": _text(before, old, secret, set()),
        "after": _text("absent" if spec is None else "running", spec, secret, changed),
    }


def _text(state: str, spec: dict[str, Any] | None, secret: set[str], changed: set[str]) -> str:
    doc: dict[str, Any] = {"state": state}
    if spec is not None:
        env = {
            name: value if name not in secret else "(secret, changed)" if name in changed else "(secret)"
            for name, value in _env(spec).items()
        }
        doc["spec"] = {**spec, **({"env": env} if "env" in spec else {})}
    return json.dumps(doc, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _env(spec: dict[str, Any] | None) -> dict[str, Any]:
    env = (spec or {}).get("env")
    return env if isinstance(env, dict) else {}
