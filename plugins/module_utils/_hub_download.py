# SPDX-License-Identifier: Apache-2.0
"""Downloading a snapshot on the head: with which program, what stands in its way, and what has arrived.

The Hub's own library does it, in whichever Python has it, else in a throw-away container of the engine's image. Private
to the collection, may change at any time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import (
    _hub_ask,
    _hub_cache,
    _hub_fetch,
    _manifest,
    _snapshot,
)
from ansible_collections.sparkpair.serving.plugins.module_utils._job import Job, JobError, Report
from ansible_collections.sparkpair.serving.plugins.module_utils._snapshot import Snapshot, amount

# How the library names what it has not finished; such a file serves no later download.
_UNFINISHED = re.compile(r"[0-9a-f]+\.[0-9a-f]{8}\.incomplete")
_QUIET_S = 60
_LOOK_S = 1.0
_IN_CONTAINER = "/hf"

Files = Sequence[Mapping[str, Any]]


def program(given: Sequence[str], docker: Sequence[str], image: str, cache: str, owner: tuple[int, int]) -> list[str]:
    """Return the command of a Python that has the Hub's library, as far as `-c SOURCE`. Raises JobError.

    Looks at what was `given`, at the Python that runs this, at the one behind a program hf, and at last at the `image`,
    in which `docker` (the client's command) starts it as the cache's owner.
    """
    if given:
        return list(given)
    if importlib.util.find_spec("huggingface_hub"):
        return [sys.executable]
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.expanduser("~/.local/bin")])
    hf = shutil.which("hf", path=places)
    if hf:
        with open(hf, "rb") as file:
            first = file.readline(4096).decode(errors="replace").strip()
        words = first[2:].split() if first.startswith("#!") else []
        if words and os.access(words[0], os.X_OK):
            return words
    if image and shutil.which(docker[0]) and _has_image(docker, image):
        return [
            *(*docker, "run", "--rm", "--interactive", "--init", "--network", "host"),
            # Root's files in a person's cache are in the way of everything that comes later.
            *("--user", f"{owner[0]}:{owner[1]}", "--env", "HOME=/tmp"),
            *("--volume", f"{cache}:{_IN_CONTAINER}", "--entrypoint", "python3", image),
        ]
    looked = f"{sys.executable} has no huggingface_hub, there is no program hf"
    looked += f", and Docker has no image {image}" if image else ""
    raise JobError(
        f"nothing on this host can download from the Hub: {looked}. Install the library for that Python or the program "
        "hf (`pip install huggingface_hub`), or name a Python that has it in sparkpair_hub_command"
    )


def _has_image(docker: Sequence[str], image: str) -> bool:
    command = [*docker, "image", "inspect", image]
    return (
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


def room(cache: str, missing: int) -> None:
    """Check that the disk has room for what is missing. Raises JobError."""
    nearest = cache
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    free = shutil.disk_usage(nearest).free
    margin = min(_snapshot.MARGIN_BYTES, missing)
    if missing and free < missing + margin:
        raise JobError(
            f"the disk of {nearest} has {amount(free)} free, and {amount(missing)} are missing, with a margin of "
            f"{amount(margin)}: free some space there, or set sparkpair_hf_cache to a larger disk"
        )


def bring(
    snapshot: Snapshot,
    job: Job,
    find_program: Callable[[], list[str]],
    endpoint: str,
    token: str,
    expected: Files,
    mode: str,
    report: Report,
) -> dict[str, Any]:
    """Download what is missing or wrong, verify it, and return `downloaded_bytes`. Runs in the job.

    The program that downloads is looked for when there is something to download, which a verification may find out.
    Raises JobError and OSError; what has arrived stays.
    """
    place = _hub_cache.repository(snapshot.cache, snapshot.repo)
    os.makedirs(place, exist_ok=True)
    _forget(os.path.join(place, "blobs"))
    missing = 0
    for attempt in (1, 2):
        _remove_wrong(snapshot, expected)
        # Files that somebody put there are whole without a blob.
        if _manifest.compare(_hub_cache.files(snapshot.path), expected):
            lacking = _hub_cache.missing_bytes(list(expected), _hub_cache.blobs(snapshot.cache, snapshot.repo))
            missing += lacking
            room(snapshot.cache, lacking)
            _download(snapshot, find_program(), endpoint, token, expected, report)
        wrong = _manifest.compare(_hub_cache.files(snapshot.path), expected)
        if wrong and attempt == 1 and not all(each.endswith(_manifest.FOREIGN) for each in wrong):
            # The library takes what is in the cache for the whole when the Hub is slow to answer.
            continue
        if wrong:
            raise JobError(
                f"the snapshot {snapshot.path} is not as the Hub lists it: {'; '.join(wrong[:5])}. Move away what does "
                "not belong there; what is missing comes when you run again"
            )
        problems = _snapshot.verify(snapshot, job, mode, expected, report)
        if not problems:
            break
        _remove(snapshot, [one for one in expected if any(each.startswith(f"{one['path']} ") for each in problems)])
        if attempt == 2:
            raise JobError(
                f"what the Hub gives of {snapshot.repo} is not what it announces, twice: {'; '.join(problems[:5])}. "
                "The files were removed; a proxy or a mirror on the way may be to blame"
            )
    reference = os.path.join(place, "refs", "main")
    if not os.path.exists(reference):
        # A download by commit writes none, and programs that are given a repository's name look for it.
        os.makedirs(os.path.dirname(reference), exist_ok=True)
        with open(reference, "w", encoding="utf-8") as file:
            file.write(snapshot.revision)
    return {"downloaded_bytes": missing}


def _download(
    snapshot: Snapshot, command: Sequence[str], endpoint: str, token: str, expected: Files, report: Report
) -> None:
    in_container = _IN_CONTAINER if "--entrypoint" in command else snapshot.cache
    request = {
        "endpoint": endpoint,
        "token": token,
        "repo": snapshot.repo,
        "revision": snapshot.revision,
        "cache": in_container,
    }
    total = _manifest.total({one["blob"]: one for one in expected}.values())
    environment = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    try:
        started = subprocess.Popen(
            [*command, "-c", inspect.getsource(_hub_fetch)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise JobError(
            f"{command[0]}, which is to download from the Hub, cannot be run ({error.strerror}): name a Python that "
            "has the Hub's library in sparkpair_hub_command"
        ) from error
    with started as helper:
        question: str | None = json.dumps(request)
        while True:
            try:
                said, complained = helper.communicate(question, timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                question = None
                here = _hub_cache.blobs(snapshot.cache, snapshot.repo)
                done = total - _hub_cache.missing_bytes(list(expected), here)
                done += _hub_cache.unfinished_bytes(snapshot.cache, snapshot.repo)
                report({"doing": "downloading", "done": min(done, total), "total": total})
    answer: dict[str, Any] = {}
    with contextlib.suppress(ValueError, IndexError):
        answer = json.loads(said.strip().splitlines()[-1])
    if "kind" not in answer:
        last = (complained.strip().splitlines() or [f"exit code {helper.returncode}"])[-1]
        raise JobError(f"the program that downloads ended without an answer: {last}")
    if answer["kind"]:
        raise JobError(_meaning(answer, snapshot, endpoint, token))


def _meaning(answer: Mapping[str, str], snapshot: Snapshot, endpoint: str, token: str) -> str:
    """Return what the downloading program's answer means for a person."""
    codes = {"token": 401, "gated": 403, "absent": 404}
    if answer["kind"] in codes:
        return str(_hub_ask.refused(codes[answer["kind"]], endpoint, snapshot.repo, snapshot.revision, token))
    if answer["kind"] == "library":
        return f"{answer['error']}: install it there, or name another Python in sparkpair_hub_command"
    if answer["kind"] == "disk":
        free = shutil.disk_usage(snapshot.cache).free
        return (
            f"{snapshot.cache} could not be written to: {answer['error']} ({amount(free)} are free). What has "
            "arrived stays; put that right and run again"
        )
    return (
        f"the download of {snapshot.repo} was interrupted ({answer['error']}). What has arrived stays; run again, and "
        "it goes on"
    )


def _forget(blobs: str) -> None:
    """Remove what ended downloads have left unfinished. What still grows belongs to a program of somebody else's."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(blobs):
            path = os.path.join(blobs, name)
            if _UNFINISHED.fullmatch(name) and time.time() - os.stat(path).st_mtime > _QUIET_S:
                os.unlink(path)


def _remove_wrong(snapshot: Snapshot, expected: Files) -> None:
    """Remove files of a wrong size: the library takes a blob that exists for whole."""
    here = _hub_cache.blobs(snapshot.cache, snapshot.repo)
    _remove(snapshot, [one for one in expected if here.get(one["blob"], one["size"]) != one["size"]])
    plain = {one["path"]: one for one in _hub_cache.files(snapshot.path)}
    _remove(
        snapshot,
        [one for one in expected if one["path"] in plain and plain[one["path"]]["size"] not in (one["size"],)],
    )


def _remove(snapshot: Snapshot, wrong: Files) -> None:
    for one in wrong:
        for path in (
            os.path.join(snapshot.path, one["path"]),
            os.path.join(_hub_cache.repository(snapshot.cache, snapshot.repo), "blobs", one["blob"]),
        ):
            with contextlib.suppress(FileNotFoundError):
                # The file in the shared store, too, or the library links to it again.
                real = os.path.realpath(path)
                os.unlink(path)
                os.unlink(real)
