# SPDX-License-Identifier: Apache-2.0
"""Which part of the model a stored tensor belongs to, by its name."""

from __future__ import annotations

import re

from sparkpair.model.config import TextConfig


def is_backbone(config: TextConfig, name: str) -> bool:
    """Whether the tensor belongs to the text model's backbone (not the MTP layer, not the vision tower)."""
    if name == "lm_head.weight":
        return True
    if not name.startswith("model.language_model."):
        return False
    found = re.match(r"model\.language_model\.layers\.(\d+)\.", name)
    return found is None or int(found[1]) < config.num_layers


def is_mtp(config: TextConfig, name: str) -> bool:
    """Whether the tensor belongs to the MTP layer."""
    return name.startswith("model.language_model.") and not is_backbone(config, name)


def is_vision(name: str) -> bool:
    """Whether the tensor belongs to the vision tower, which only rank 0 holds."""
    return name.startswith("model.visual.")
