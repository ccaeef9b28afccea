# SPDX-License-Identifier: Apache-2.0
"""The command line of another playbook for the same pair, to be pasted: same program, inventories and settings.

Pure functions. Private to the collection, may change at any time.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable

import yaml

PREFIX = "sparkpair_"


Split = Callable[[str], list[str]]


def command(
    program: str, inventories: Iterable[str], extra_vars: Iterable[str], playbook: str, where: str, split: Split
) -> str:
    """Return the command line, with paths as they are from the directory `where`.

    Of `extra_vars`, as they were given with -e, come files and this collection's settings: others may be secrets.
    `split` takes such a text apart as Ansible does, which keeps quotes and templates whole.
    """
    words = [_near(program, where)]
    for inventory in inventories:
        words += ["-i", _near(inventory, where)]
    for given in extra_vars:
        for kept in _kept(given, split):
            words += ["-e", kept]
    return shlex.join([*words, _near(playbook, where)])


def _near(path: str, where: str) -> str:
    return os.path.relpath(path, where) if path.startswith(where.rstrip("/") + "/") else path


def _kept(given: str, split: Split) -> list[str]:
    if given.startswith("@"):
        return [given]
    if given.lstrip().startswith(("{", "[")):
        found = yaml.safe_load(given)
        own = (
            {name: value for name, value in found.items() if name.startswith(PREFIX)} if isinstance(found, dict) else {}
        )
        return [json.dumps(own)] if own else []
    return [word for word in split(given) if word.startswith(PREFIX)]
