# SPDX-License-Identifier: Apache-2.0
"""Facts of one host that decide whether a rank can start there: directory, disk, memory, name, engine,
endpoint.

Every function returns data and raises nothing for what it finds; judging is left to `_findings.py`. Private
to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._key_file import authorization
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_supervisor import boot_id

ENGINE_TIMEOUT_S = 60
ENDPOINT_TIMEOUT_S = 5


def directory(path: str) -> dict[str, Any]:
    """Return whether a directory `exists`, can be written to or created (`writable`), its `owner` and
    `free_bytes`.

    `nearest` is the directory itself or the ancestor in which it would be created; `free_bytes` is of that
    one's disk.
    """
    nearest = path
    while not os.path.lexists(nearest) and os.path.dirname(nearest) != nearest:
        nearest = os.path.dirname(nearest)
    usable = os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK) and not _read_only(nearest)
    return {
        "exists": os.path.isdir(path),
        "writable": usable,
        "nearest": nearest,
        "nearest_is_directory": os.path.isdir(nearest),
        "read_only": _read_only(nearest),
        "free_bytes": shutil.disk_usage(nearest).free if os.path.isdir(nearest) else 0,
    }


def _read_only(path: str) -> bool:
    """Say whether the file system is mounted read-only: root passes every other test of permission."""
    with contextlib.suppress(OSError):
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return False


def system() -> str:
    """Return what two hosts have in common only when they are one machine: its boot and its network."""
    # Containers of one machine share its boot; those that share its network as well are no two hosts either.
    return f"{boot_id()}/{os.stat('/proc/self/ns/net').st_ino}"


def memory(path: str = "/proc/meminfo") -> dict[str, int]:
    """Return `total_bytes` and `available_bytes` of the machine."""
    wanted = {"MemTotal": "total_bytes", "MemAvailable": "available_bytes"}
    result = {}
    with open(path, encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in wanted:
                result[wanted[name]] = int(rest.split()[0]) * 1024
    return result


def hosts_file_addresses(name: str, path: str = "/etc/hosts") -> list[str]:
    """Return the addresses that the hosts file gives `name`; none when the file or the name is not there."""
    result = []
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split("#", 1)[0].split()
            if name in fields[1:]:
                result.append(fields[0])
    return result


def engine(argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's `version` and `code_digest` as the command `argv` prints them, or why not in
    `error`.

    `environment` is the one a rank gets, so that the engine that answers is the engine that will serve.
    """
    failure = {"version": "", "code_digest": ""}
    try:
        done = subprocess.run(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ENGINE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {**failure, "error": f"it did not answer within {ENGINE_TIMEOUT_S} s"}
    except OSError as error:
        return {**failure, "error": f"{error.strerror}"}
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return {**failure, "error": f"exit code {done.returncode}: {lines[-1]}"}
    try:
        answer = json.loads(done.stdout)
        return {"version": str(answer["version"]), "code_digest": str(answer["code_digest"]), "error": ""}
    except (ValueError, KeyError, TypeError):
        shown = done.stdout.decode(errors="replace").strip()[:200]
        return {**failure, "error": f"its answer is not the expected JSON: {shown!r}"}


def endpoint(base_url: str, ready_path: str, health_path: str, key: str | None = None) -> dict[str, Any]:
    """Return whether the API is `ready`, its `health` document (None without one), and in `error` why it is
    not. It is asked with `key`.
    """
    try:
        _get(base_url + ready_path, key)
    except (OSError, ValueError) as error:
        return {"url": base_url, "ready": False, "health": None, "error": str(error)}
    try:
        health = json.loads(_get(base_url + health_path, key))
    except (OSError, ValueError) as error:
        return {"url": base_url, "ready": False, "health": None, "error": str(error)}
    return {"url": base_url, "ready": True, "health": health, "error": ""}


def _get(url: str, key: str | None) -> bytes:
    """Return the body of a reply with status 200. Raises OSError for any other, and without one."""
    # A proxy of the environment has no business between a host and its own rank.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers=authorization(key))
    with opener.open(request, timeout=ENDPOINT_TIMEOUT_S) as reply:
        return bytes(reply.read())


def remembered_ports(path: str) -> dict[str, int]:
    """Return the ports that an earlier run chose, empty when there was none or its file is damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            return {name: int(port) for name, port in json.load(file).items() if name in ("port", "master_port")}
    except (OSError, ValueError, TypeError, AttributeError):
        # The file only spares a port from changing; a new choice is made and written in its place.
        return {}
