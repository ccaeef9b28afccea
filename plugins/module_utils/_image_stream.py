# SPDX-License-Identifier: Apache-2.0
"""Sending an image from this host's Docker straight into another host's, with progress in a file.

Private to the collection, may change at any time.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils import _image
from ansible_collections.sparkpair.serving.plugins.module_utils._docker_cli import DockerError

_CHUNK = 1 << 20
_TELL_S = 5.0


def remote_identity(command: Sequence[str], name: str) -> str:
    """Return the identity of the image `name` in the Docker that `command` talks to, empty without one.

    Raises DockerError when that Docker cannot be asked.
    """
    done = subprocess.run(
        [*command, "image", "inspect", name], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return _image.identity(json.loads(done.stdout)[0])
    if "no such image" in done.stderr.lower():
        return ""
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise DockerError(f"`{' '.join(command)}` cannot be asked for the image {name}: {said}")


def send(source: Sequence[str], target: Sequence[str], name: str, total: int, progress: str) -> dict[str, Any]:
    """Stream the image out of one Docker into another; return `bytes`, `seconds` and `mib_per_s`.

    `source` and `target` are commands that talk to the two. The file `progress` gets a line every few seconds; `total`
    is the size that Docker tells, in bytes. Raises DockerError.
    """
    begun = told = time.monotonic()
    sent = 0
    saver = subprocess.Popen(
        [*source, "save", name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    loader = subprocess.Popen(
        [*target, "load", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert saver.stdout is not None
    assert loader.stdin is not None
    with open(progress, "w", encoding="utf-8") as file:
        try:
            while chunk := saver.stdout.read(_CHUNK):
                loader.stdin.write(chunk)
                sent += len(chunk)
                now = time.monotonic()
                if now - told >= _TELL_S:
                    told = now
                    file.write(_line(name, sent, total, now - begun))
                    file.flush()
            loader.stdin.close()
        except BrokenPipeError:
            # The loader has ended, and says why.
            saver.kill()
        loader.stdin = None
        _, refused = loader.communicate()
        saver.stdout.close()
        saved = saver.wait()
        seconds = time.monotonic() - begun
        file.write(_line(name, sent, total, seconds))
    if loader.returncode != 0:
        raise DockerError(f"the other Docker did not take the image: {refused.decode(errors='replace').strip()}")
    if saved != 0:
        said = saver.stderr.read().decode(errors="replace").strip() if saver.stderr else ""
        raise DockerError(f"the image {name} could not be read: {said}")
    return {"bytes": sent, "seconds": round(seconds, 1), "mib_per_s": round(sent / (1 << 20) / max(seconds, 1e-3), 1)}


def _line(name: str, sent: int, total: int, seconds: float) -> str:
    rate = sent / (1 << 20) / max(seconds, 1e-3)
    return f"{name}: {sent / (1 << 20):.0f} MiB of about {total / (1 << 20):.0f} in {seconds:.0f} s, {rate:.0f} MiB/s\n"
