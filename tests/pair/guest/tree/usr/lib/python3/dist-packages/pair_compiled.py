# SPDX-License-Identifier: Apache-2.0
"""Keeps what Python compiles out of zip archives, by the hash of its source.

Ansible brings every module with all it imports as sources in an archive of its own, which Python compiles anew for
every task. Where a processor is emulated, that is most of a task's time.
"""

from __future__ import annotations

import _imp
import marshal
import os
import types
import zipimport

_MAGIC = 0x70616972
_compile = zipimport._compile_source


def _compiled(pathname: str, source: bytes) -> types.CodeType:
    folder = f"/var/tmp/compiled-{os.geteuid()}"
    place = f"{folder}/{_imp.source_hash(_MAGIC, source).hex()}-{len(source)}"
    try:
        with open(place, "rb") as file:
            return marshal.load(file)
    except (OSError, EOFError, ValueError, TypeError):
        code = _compile(pathname, source)
    unfinished = f"{place}.{os.getpid()}"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        with open(unfinished, "wb") as file:
            marshal.dump(code, file)
        os.replace(unfinished, place)
    except OSError:
        # A full disk keeps nothing, and compiles.
        pass
    return code


zipimport._compile_source = _compiled
