# SPDX-License-Identifier: Apache-2.0
"""A miniature's directory: written whole or not at all, with a manifest of its files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from sparkpair.errors import UserError

MANIFEST_NAME = "manifest.json"


@contextlib.contextmanager
def staged(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """A place to write the files of `directory` to, which must not exist or be empty.

    It lies beside the target and takes its place in the end, so that an interrupted or failed write leaves nothing
    that looks like a checkpoint. Raises UserError naming the path when the disk does not take it.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        if directory.exists() and any(directory.iterdir()):
            raise UserError(f"{directory} is not empty. Give a new directory, or remove this one first.")
        staging = pathlib.Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            yield staging
            staging.chmod(0o755)
            os.replace(staging, directory)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"{directory} cannot be written: {error.strerror or error}. A miniature takes about 20 MB; nothing of it "
            "was left behind. Free some space or choose another directory."
        ) from None


def write_manifest(directory: pathlib.Path, seed: int | None) -> None:
    """Write manifest.json: size and SHA-256 of every other file, and one digest over them all.

    `seed` is that of random weights, None for trained ones.
    """
    files = {}
    paths = [path for path in directory.rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda entry: entry.relative_to(directory).as_posix().encode()):
        name = path.relative_to(directory).as_posix()
        if name != MANIFEST_NAME:
            with path.open("rb") as file:
                files[name] = {
                    "size": path.stat().st_size,
                    "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
                }
    listing = json.dumps(files, sort_keys=True, separators=(",", ":"))
    manifest = {
        "format": 1,
        "seed": seed,
        "files": files,
        "digest": hashlib.sha256(listing.encode()).hexdigest(),
    }
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
