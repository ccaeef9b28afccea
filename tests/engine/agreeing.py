# SPDX-License-Identifier: Apache-2.0
"""A random checkpoint whose MTP head often, but not always, agrees with the backbone.

The sublayers of both are weakened until the next token depends mostly on the last one, and the head's join passes the
embedding of that token on. So the head guesses right where the context matters little, and wrong where it does not.
"""

from __future__ import annotations

import pathlib

import torch
from safetensors.torch import load_file, save_file
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.model.config import load_text_config

from tests.engine.model.configurations import random_text_config

TEXT = "model.language_model"


def write_agreeing(directory: pathlib.Path, seed: int, *, strength: float) -> None:
    """Write the checkpoint of a seed's random configuration, 320 ids; see `weaken`."""
    document = miniature_document({"text_config": random_text_config(seed) | {"num_nextn_predict_layers": 1}})
    document["text_config"]["pad_token_id"] = 0
    write_weights(directory, document, seed, frozenset(range(320)))
    weaken(directory, strength=strength)


def weaken(directory: pathlib.Path, *, strength: float) -> None:
    """Leave only `strength` of what the sublayers put out, and let the head's join pass the embedding on."""
    layers = load_text_config(directory).num_layers
    head = f"{TEXT}.layers.{layers}"
    norm: torch.Tensor | None = None
    for path in sorted(directory.glob("*.safetensors")):
        tensors = load_file(path)
        norm = tensors.get(f"{TEXT}.norm.weight", norm)
        for name, tensor in tensors.items():
            if name.startswith(TEXT) and name.endswith(("o_proj.weight", "down_proj.weight")):
                tensors[name] = tensor * strength
            elif name == f"{head}.eh_proj.weight":
                tensors[name] = torch.eye(*tensor.shape, dtype=tensor.dtype)
            elif name == f"{head}.enorm.weight":
                tensors[name] = torch.ones_like(tensor)
            elif name == f"{head}.shared_head.norm.weight" and norm is not None:
                tensors[name] = norm.clone()
        save_file(tensors, path, metadata={"format": "pt"})
