# SPDX-License-Identifier: Apache-2.0
"""A random checkpoint, and drafters that often, but not always, agree with it.

The sublayers of both are weakened until the next token depends mostly on the last one, and the head's join passes the
embedding of that token on. The block drafter's selector is the model's embedding and head, so that it follows tokens as
the model does. So both guess right where the context matters little, and wrong where it does.
"""

from __future__ import annotations

import pathlib

import torch
from safetensors.torch import load_file, save_file
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.checkpoint.miniature_drafter import drafter_document, write_drafter_files
from sparkpair.checkpoint.safetensors import Checkpoint
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


def write_agreeing_drafter(directory: pathlib.Path, target: pathlib.Path) -> None:
    """Write a DFlash2 drafter for a weakened checkpoint: every token is a candidate, and the selector decides."""
    config, checkpoint = load_text_config(target), Checkpoint(target)
    document = drafter_document(config)
    document["head_dim"] = 8
    document["dflash_config"] |= {"selector_rank": config.hidden_size, "selector_top_k": config.vocab_size}
    directory.mkdir()
    write_drafter_files(directory, document, config, 3)
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = tensor * 0.02

    def normed(rows: torch.Tensor) -> torch.Tensor:
        return rows.float() * (rows.float().square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt()

    embedding = checkpoint.read(f"{TEXT}.embed_tokens.weight")
    # A block's rows come out as the mask's embedding, made so small that their own logits do not count.
    small = 0.01
    mask = small * normed(embedding[document["dflash_config"]["mask_token_id"]])
    tensors["norm.weight"] = torch.full_like(tensors["norm.weight"], small)
    selector = "candidate_selector"
    tensors[f"{selector}.hidden_projection.weight"] = (mask / mask.square().sum()).expand(config.hidden_size, -1)
    tensors[f"{selector}.predecessor_codebook"] = normed(embedding) * checkpoint.read(f"{TEXT}.norm.weight").float()
    tensors[f"{selector}.successor_codebook"] = checkpoint.read("lm_head.weight")
    stored = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
