# SPDX-License-Identifier: Apache-2.0
"""The configuration of the vision tower: read from the `vision_config` of config.json and checked."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from sparkpair.errors import UserError
from sparkpair.media.patches import CHANNELS, FRAMES, MERGE, PATCH
from sparkpair.model.config import Fields, TextConfig, load_document


@dataclasses.dataclass(frozen=True, slots=True)
class VisionConfig:
    """Dimensions of the tower.

    A patch is `temporal_patch` x `patch` x `patch` pixels, a token `merge` x `merge` patches.
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch: int
    temporal_patch: int
    merge: int
    channels: int
    out_hidden_size: int
    rms_norm_eps: float
    swiglu_limit: float
    rope_theta: float

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def patch_values(self) -> int:
        """Numbers in one patch, ordered channel, time, y, x."""
        return self.channels * self.temporal_patch * self.patch**2


def parse_vision_config(document: dict[str, Any], source: str) -> VisionConfig:
    """Build a VisionConfig from a whole config.json. Raises UserError naming `source` and the field."""
    nested = document.get("vision_config")
    if not isinstance(nested, dict):
        raise UserError(f"{source}: there is no vision_config, so the checkpoint cannot look at pictures")
    fields = Fields(f"{source}: vision_config", nested)
    rope = nested.get("rope_parameters")
    for name, wanted in (("hidden_act", "silu"), ("attention_bias", True)):
        if nested.get(name, wanted) != wanted:
            raise fields.fail(name, nested[name], repr(wanted))
    config = VisionConfig(
        depth=fields.integer("depth"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=fields.integer("num_heads"),
        patch=fields.integer("patch_size", 14),
        temporal_patch=fields.integer("temporal_patch_size", 2),
        merge=fields.integer("spatial_merge_size", 2),
        channels=fields.integer("in_channels", 3),
        out_hidden_size=fields.integer("out_hidden_size"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-5),
        swiglu_limit=fields.number("swiglu_limit", 10.0),
        rope_theta=Fields(fields.source, rope if isinstance(rope, dict) else {}).number("rope_theta", 10000.0),
    )
    if config.hidden_size % (4 * config.num_heads):
        raise fields.fail("hidden_size", config.hidden_size, f"a multiple of 4 * num_heads ({4 * config.num_heads})")
    return config


def load_vision_config(directory: pathlib.Path) -> VisionConfig:
    """Read and check the vision configuration of a checkpoint directory. Raises UserError naming the path."""
    return parse_vision_config(load_document(directory), str(directory / "config.json"))


def load_tower_config(directory: pathlib.Path, text: TextConfig) -> VisionConfig:
    """The same for a tower that feeds this text model. Raises UserError, also where it reads pictures cut otherwise."""
    config = load_vision_config(directory)
    for name, found, wanted in (
        ("patch_size", config.patch, PATCH),
        ("temporal_patch_size", config.temporal_patch, FRAMES),
        ("spatial_merge_size", config.merge, MERGE),
        ("in_channels", config.channels, CHANNELS),
        ("out_hidden_size", config.out_hidden_size, text.hidden_size),
    ):
        if found != wanted:
            raise UserError(
                f"{directory / 'config.json'}: vision_config.{name} is {found}; this engine reads {wanted}. "
                "Serve it with --no-vision"
            )
    return config
