# SPDX-License-Identifier: Apache-2.0
"""Strict types for settings: a value is taken as it is meant, or refused with the path of what is wrong.

Ansible's own conversions are lenient (1.5 becomes 1, any text becomes a list). A deployment that starts
with another value than the one that was written is worse than one that refuses. Private to the collection,
may change at any time.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

TRUE_WORDS = ("true", "yes", "on", "1")
FALSE_WORDS = ("false", "no", "off", "0")

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Room for 16 addresses after the tenth.
_LONGEST_PREFIX = 27
_WORD = re.compile(r"[!-~]+")
_CONTAINER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")


class Refused(Exception):
    """A value that cannot be taken. The text says what was found and what would be right, without the
    setting's name.
    """


def shown(value: Any) -> str:
    """Return `value` the way a person would recognise it, cut to a readable length."""
    text = json.dumps(plain(value), ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def plain(value: Any) -> Any:
    """Return `value` built of exact dict, list, str, int, float, bool and None, whatever subclasses carry
    it.
    """
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


def to_int(value: Any, path: str = "") -> int:
    """Return a whole number. Accepts 4 and "4"; refuses true, 1.5, "four" and "4.0"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    raise Refused(f"{path}{shown(value)} is not a whole number")


def to_float(value: Any, path: str = "") -> float:
    """Return a finite number. Accepts 2, 2.5 and "2.5"; refuses true, "much", infinity and not-a-number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()) and math.isfinite(float(value)):
        return float(value)
    raise Refused(f"{path}{shown(value)} is not a number")


def to_bool(value: Any, path: str = "") -> bool:
    """Return a truth value. Accepts true, false, 0, 1 and the words yes, no, on, off, true, false in any
    case.
    """
    if isinstance(value, bool):
        return bool(value)
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise Refused(f"{path}{shown(value)} is neither true nor false")


def to_str(value: Any, path: str = "") -> str:
    """Return text. Accepts text and whole numbers; refuses what YAML has read as something else (true,
    1.10, lists).
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    raise Refused(f"{path}{shown(value)} is not text; put it in quotes if it was meant as text")


def to_list(value: Any, element: Callable[[Any, str], Any], path: str = "") -> list[Any]:
    """Return a list of converted elements. Accepts a list and a JSON list in a string (`-e 'x=["a",
    "b"]'`).
    """
    found = _from_json(value)
    if not isinstance(found, list):
        raise Refused(f'{path}{shown(value)} is not a list; write ["first", "second"]')
    return [element(item, f"{path}[{index}]: ") for index, item in enumerate(found)]


def to_dict(value: Any, path: str = "") -> dict[str, Any]:
    """Return a dictionary. Accepts a dictionary and a JSON object in a string."""
    found = _from_json(value)
    if not isinstance(found, Mapping):
        raise Refused(f'{path}{shown(value)} is not a dictionary; write {{"NAME": "value"}}')
    return dict(plain(found))


def _from_json(value: Any) -> Any:
    """Return what a string holds as JSON, the value itself when it is no string or no JSON."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError as error:
            raise Refused(f"{shown(value)} is not valid JSON ({error})") from error
    return value


def check_ipv4(value: str) -> str:
    """Return the address unchanged. Refuses everything but a dotted IPv4 address."""
    try:
        ipaddress.IPv4Address(value)
    except ValueError as error:
        raise Refused(f"{shown(value)} is not an IPv4 address such as 192.0.2.1") from error
    return value


def check_networks(value: list[str]) -> list[str]:
    """Return the list unchanged. Refuses everything but two IPv4 networks apart, each with room for a pair."""
    networks = []
    for each in value:
        try:
            networks.append(ipaddress.IPv4Network(each))
        except ValueError as error:
            raise Refused(f"{shown(each)} is not an IPv4 network such as 192.168.100.0/24") from error
        if networks[-1].prefixlen > _LONGEST_PREFIX:
            raise Refused(f"{shown(each)} has no room for the numbers 10 and up; use a /{_LONGEST_PREFIX} or larger")
    if len(networks) != 2 or networks[0].overlaps(networks[1]):
        raise Refused(f"{shown(value)}: two networks that do not overlap are needed, one for each half of the port")
    return value


def check_word(value: str) -> str:
    """Return the text unchanged. Refuses blanks and characters outside printable ASCII."""
    if not _WORD.fullmatch(value):
        raise Refused(f"{shown(value)} may hold letters, digits and signs, but no blanks")
    return value


def check_container(value: str) -> str:
    """Return the text unchanged. Refuses what Docker takes for no name of a container or a volume."""
    if not _CONTAINER.fullmatch(value):
        raise Refused(f"{shown(value)} is no name for Docker: letters, digits, _ . - and a letter or digit first")
    return value


def check_draft_policy(value: str) -> str:
    """Return the text unchanged. Refuses a policy for drafts that is not of the family that fits DFlash2."""
    if not value.startswith("f"):
        raise Refused(f"{shown(value)} is no policy for DFlash2; those begin with f, for example fnc7:0.3")
    return check_word(value)


def check_environment(value: Mapping[str, Any]) -> dict[str, str]:
    """Return names and values of environment variables. Refuses odd names and values that are not text."""
    result = {}
    for name, item in value.items():
        if not _VARIABLE.fullmatch(str(name)):
            raise Refused(f"{shown(name)} is not a name of an environment variable")
        result[str(name)] = to_str(item, f"{name}: ")
    return result
