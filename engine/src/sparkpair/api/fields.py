# SPDX-License-Identifier: Apache-2.0
"""Typed reading of a request's fields, one at a time and without coercion.

`null` counts as absent. A boolean is never a number, a fraction never an integer. Numbers may be written as
strings, because some clients do. What has not been asked for in the end is what this server does not know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sparkpair.api.errors import invalid

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Fields:
    """The fields of one object of a request; `prefix` stands before their names in errors. `body_bytes` is how long the
    body was that the object is all of.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "", *, body_bytes: int = 0) -> None:
        self.body_bytes = body_bytes
        self._values = values
        self._prefix = prefix
        self._asked: set[str] = set()

    def get(self, name: str) -> Any:
        """The raw value, None when absent or null."""
        self._asked.add(name)
        return self._values.get(name)

    def unknown(self) -> Iterator[str]:
        """Names that were sent but not asked for so far."""
        return (name for name in self._values if name not in self._asked)

    def boolean(self, name: str, default: bool) -> bool:
        """A boolean. Raises ApiError 400 for anything else, as all of these do."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._expected(name, "true or false")
        return value

    def string(self, name: str) -> str | None:
        """A string."""
        value = self.get(name)
        if not isinstance(value, str | None):
            raise self._expected(name, "a string")
        return value

    def object(self, name: str) -> Mapping[str, Any]:
        """An object; empty when absent."""
        value = self.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._expected(name, "an object or null")
        return value

    def integer(self, name: str) -> int | None:
        """A whole number."""
        value = self.get(name)
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int | None):
            raise self._expected(name, "a whole number")
        return value

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._expected(name, "a finite number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._expected(name, "a finite number")
        return number

    def _expected(self, name: str, what: str) -> Exception:
        return invalid(f"{self._prefix}{name}: expected {what}", (self._prefix + name).split(".")[0])
