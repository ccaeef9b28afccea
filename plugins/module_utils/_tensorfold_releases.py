# SPDX-License-Identifier: Apache-2.0
"""The published recipe releases that `sparkpair_release` selects: image, checkpoint, drafter, and their order.

All of them are TensorFold v0.6.0 with a patch series. Pure; private to the collection, may change at any time.
"""

from __future__ import annotations

from dataclasses import dataclass

IMAGE_REPOSITORY = "ghcr.io/miaai-lab/glm-5.3-flash-exl3-2x-dgx-sparks-tensorfold"
ENGINE_VERSION = "v0.6.0"

DRAFTER_ID = "incoai/GLM-5.3-Flash-DFlash2"
TR3_ID = "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw"
TENSORFOLD_ID = "Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold"
ABLIT_ID = "Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold-Ablit"

# A pin belongs to one repository; another one has none unless it is set.
REVISIONS = {
    DRAFTER_ID: "bf582e4eacc1810f76656d1811693ff6c6737d2a",
    TR3_ID: "9eaebb7c4e96d983dcd538e18624622ba5b820a8",
    TENSORFOLD_ID: "078455ffe6472f9a52fbc1139f58b9db2881b25c",
    ABLIT_ID: "57edefd2f5d9b371c8345883304d5af68b52fa24",
}


@dataclass(frozen=True)
class Release:
    """One release of the recipe. `patches` is the hash of its series, `count` how many patches that are."""

    name: str
    patches: str
    digest: str
    count: int

    @property
    def tag(self) -> str:
        """The tag of its published image."""
        return f"{ENGINE_VERSION}-{self.patches}"

    @property
    def model_id(self) -> str:
        """The repository of its default checkpoint."""
        return TENSORFOLD_ID if at_least(self.name, "v1.3.3") else TR3_ID


# Releases that changed no image share the entry of the one before.
_V13 = ("ae8d1c789b47", "22789f0cb3dc308f0b2ce52a33961b88bd624af1725e91e8aba0a74a671bb969", 53)
_V16 = ("c4cab25d2d36", "b47c19d66633f27cbe37da13fbc580363f466c08b9529feab1eecb1a4b904bf1", 75)
_IMAGES = {
    "v1.3": _V13,
    "v1.3.1": _V13,
    "v1.3.2": _V13,
    "v1.3.3": _V13,
    "v1.4": ("5e01f1bb74d8", "14f15591eae5d6a540f09218d3852068962fe5381371bbfefe0e9194cd834529", 68),
    "v1.5": ("9f73cca659a1", "ef83797d791fef96c4605e8d37367aca6de5aeac7bb672792cb682e2e55d4237", 70),
    "v1.6": _V16,
    "v1.7": _V16,
    "v1.7.1": ("1692d2df78d2", "a8067cd7e14c14fa83d1dbed60261428f6d1737cec4554445573354af040dd7c", 76),
    "v1.8": ("31557ed1cef6", "cbb4b3c66273e2965dd40a7227e7a5243db333fe250113fb3987462ad4f12588", 82),
    "v1.9": ("bd91ecd14811", "43a8e61cbd4288a07e69cb8677c40faa187d93f3a748111f51064f9e9f23e828", 94),
    "v1.9.1": ("ff5dffc865d3", "20275b2be818635a9c711d80a177477488d2c75cad373cc644422295c4fe9f07", 94),
    "v1.10": ("a1897d591f70", "bc34d7d63f978cf601f42863b284bc95a567c50c10e9adb0866a635be568bf5f", 96),
}
RELEASES = {
    name: Release(name, patches, f"sha256:{digest}", count) for name, (patches, digest, count) in _IMAGES.items()
}
FIRST = next(iter(RELEASES))


def at_least(release: str, since: str) -> bool:
    """Say whether `release` is `since` or a later one. v1.10 is later than v1.9.1."""
    return _numbers(release) >= _numbers(since)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.lstrip("v").split("."))
