# SPDX-License-Identifier: Apache-2.0
"""The trained miniature that comes with the package: where it lies, and a checked copy of it.

Its drafter, if it has one, lies in `drafter` inside its directory.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from importlib import resources

from sparkpair.checkpoint.manifest import MANIFEST_NAME, staged
from sparkpair.errors import UserError


def trained_directory() -> pathlib.Path:
    """The directory of the package's own. Raises UserError when this installation has none."""
    directory = pathlib.Path(str(resources.files("sparkpair"))) / "data" / "miniature"
    if not (directory / MANIFEST_NAME).is_file():
        raise UserError(
            f"this installation of sparkpair has no trained miniature: {directory / MANIFEST_NAME} is missing. Take "
            "random weights, without --trained, or install a version that has one."
        )
    return directory


def copy_trained(directory: pathlib.Path, source: pathlib.Path | None = None) -> None:
    """Copy what the manifest of `source` (None: the package's own) lists to `directory`, which must not exist or be
    empty.

    Raises UserError naming a file that is not what the manifest says, or the path when the disk does not take it.
    """
    source = source or trained_directory()
    manifest = json.loads((source / MANIFEST_NAME).read_text(encoding="utf-8"))
    with staged(directory) as staging:
        for name, entry in manifest["files"].items():
            try:
                content = (source / name).read_bytes()
            except FileNotFoundError:
                raise UserError(f"{source / name} is missing. Install sparkpair again.") from None
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise UserError(f"{source / name} is not what {MANIFEST_NAME} says. Install sparkpair again.")
            (staging / name).parent.mkdir(exist_ok=True)
            (staging / name).write_bytes(content)
        (staging / MANIFEST_NAME).write_bytes((source / MANIFEST_NAME).read_bytes())
