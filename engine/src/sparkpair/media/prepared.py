# SPDX-License-Identifier: Apache-2.0
"""A picture or clip as it goes into a prompt, and the one function that makes it from what a client sent."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Literal

from sparkpair.media.clips import read_clip
from sparkpair.media.limits import MediaLimits
from sparkpair.media.patches import MERGE, Grid, Pixels
from sparkpair.media.pictures import read_picture

Kind = Literal["picture", "clip"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Patches on a grid as the tower reads them. `seconds` are the times of a clip's pairs, empty for a picture.

    `digest` tells contents apart: of patches and grid, so that equal pixels from different files are equal.
    """

    patches: Pixels
    grid: Grid
    seconds: tuple[float, ...]
    digest: bytes

    @property
    def pair_tokens(self) -> int:
        """Prompt tokens of the picture, or of one pair of a clip's frames."""
        return self.grid[1] * self.grid[2] // MERGE**2


def prepare(kind: Kind, data: bytes, limits: MediaLimits) -> Prepared:
    """Decode a file's bytes. Raises MediaError saying what is wrong with it."""
    seconds: tuple[float, ...] = ()
    if kind == "picture":
        patches, grid = read_picture(data, limits)
    else:
        clip = read_clip(data, limits)
        patches, grid, seconds = clip.patches, clip.grid, clip.seconds
    digest = hashlib.sha256(repr(grid).encode())
    digest.update(patches.data)
    return Prepared(patches, grid, seconds, digest.digest())
