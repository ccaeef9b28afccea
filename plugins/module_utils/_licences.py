# SPDX-License-Identifier: Apache-2.0
"""The licences that apply to what a pair serves, and what each of them asks of the operator.

Pure. Private to the collection, may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkpair.serving.plugins.module_utils._tensorfold_releases import (
    ABLIT_ID,
    TENSORFOLD_ID,
    TR3_ID,
)


@dataclass(frozen=True)
class Licence:
    """One component under its licence; `asks` is what the operator has to know, `contact` who grants other terms."""

    component: str
    licence: str
    asks: str
    contact: str = ""

    def as_data(self) -> dict[str, str]:
        """Return the parts that the plan shows."""
        return {"component": self.component, "licence": self.licence, "asks": self.asks}


DFLASH2 = Licence(
    "drafter DFlash2",
    "CC BY-NC-ND 4.0",
    "non-commercial use only, no derivatives; a commercial licence comes from contact@inco.ai",
    "contact@inco.ai",
)
_ENGINE = Licence("TensorFold", "Apache-2.0 (earlier code MIT)", "keep its notices when you pass the image on")
_RECIPE = Licence("recipe and its patches", "Apache-2.0", "keep NOTICE and say what you changed when you pass it on")
_BASE_IMAGE = Licence(
    "base image",
    "NVIDIA Software License Agreement and Product-Specific Terms for NVIDIA AI Products",
    "pulling or running it accepts them; the notice at the start of a container must stay visible",
)
_CHECKPOINTS = {
    TR3_ID: Licence(
        "checkpoint",
        "ShapleyMcg License 1.0",
        "say that the work uses ShapleyMcg by Brandon M. Music (brandonmmusic-max/shapleymcg), else it is unlicensed",
    ),
    TENSORFOLD_ID: Licence("checkpoint", "Apache-2.0 (base model MIT by Z.ai)", "its licence files come with it"),
    ABLIT_ID: Licence("checkpoint", "gated terms", "your account must have accepted them on the checkpoint's page"),
}


def apply_to(settings: Mapping[str, Any]) -> list[Licence]:
    """Return the licences of what the effective settings serve. The engine sparkpair has this collection's own."""
    if settings["engine"] != "tensorfold":
        return []
    model = settings["model_id"]
    unknown = Licence(f"checkpoint {model}", "see its page", "this collection does not know its terms")
    result = [_RECIPE, _ENGINE, _BASE_IMAGE, _CHECKPOINTS.get(model, unknown)]
    return result + ([DFLASH2] if settings["drafter"] == "dflash2" else [])
