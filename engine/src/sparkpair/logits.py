# SPDX-License-Identifier: Apache-2.0
"""`sparkpair logits`: the logits of every position for given token ids, for comparing with other implementations."""

from __future__ import annotations

import json
import multiprocessing
import pathlib

import numpy
import torch

from sparkpair.cache.state import Span
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.checkpoint.split import check_world
from sparkpair.comm.group import Group, SoloGroup
from sparkpair.comm.local import join_store, local_group, open_store
from sparkpair.errors import UserError
from sparkpair.model.config import load_text_config
from sparkpair.model.glm5_next import Glm5NextRank


def load_rank(
    model: pathlib.Path, group: Group, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Glm5NextRank:
    """The model of one rank of `group` on `device`."""
    config = load_text_config(model)
    check_world(config, group.world)
    weights = RankWeights(
        Checkpoint(model),
        config,
        world=group.world,
        rank=group.rank,
        dtype=dtype,
        device=torch.device(device),
    )
    return Glm5NextRank(config, weights, group)


def all_logits(model: Glm5NextRank, ids: list[int], *, step: bool) -> torch.Tensor:
    """Logits [len(ids), vocab] fp32: the prompt in one pass, or with `step` one token at a time as in decoding."""
    tokens = torch.tensor(ids, dtype=torch.int64, device=model.device)
    state = model.lone_state(len(ids))
    if not step:
        return model.forward(tokens, [Span(slice(0, len(ids)), state, decode=False)], list(range(len(ids))))
    rows = []
    for at in range(len(ids)):
        rows.append(model.forward(tokens[at : at + 1], [Span(slice(0, 1), state, decode=True)], [0]))
        state.commit(1)
    return torch.cat(rows)


def _other_rank(model: pathlib.Path, ids: list[int], step: bool, rank: int, world: int, port: int) -> None:
    """What ranks from 1 up do, each in a process of its own."""
    torch.set_num_threads(1)
    all_logits(load_rank(model, local_group(join_store(port, world), rank, world)), ids, step=step)


def _read_ids(path: pathlib.Path, vocab_size: int) -> list[int]:
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--ids {path} cannot be read as JSON: {error}") from None
    if (
        not isinstance(ids, list)
        or not ids
        or any(not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size for token in ids)
    ):
        raise UserError(f"--ids {path}: expected a JSON list of token ids from 0 to {vocab_size - 1}, at least one")
    return ids


def write_logits(model: pathlib.Path, ids_path: pathlib.Path, *, tp: int, step: bool, output: pathlib.Path) -> None:
    """Write `output`, a NumPy archive with `ids` [n] int64 and `logits` [n, vocab] fp32. Raises UserError."""
    config = load_text_config(model)
    ids = _read_ids(ids_path, config.vocab_size)
    if tp < 1:
        raise UserError(f"--tp {tp}: at least 1")
    if tp == 1:
        logits = all_logits(load_rank(model, SoloGroup()), ids, step=step)
    else:
        check_world(config, tp)
        store = open_store(tp)
        context = multiprocessing.get_context("spawn")
        others = [
            context.Process(target=_other_rank, args=(model, ids, step, rank, tp, store.port), daemon=True)
            for rank in range(1, tp)
        ]
        for process in others:
            process.start()
        try:
            logits = all_logits(load_rank(model, local_group(store, 0, tp)), ids, step=step)
        finally:
            for process in others:
                process.join()
    try:
        with output.open("wb") as file:
            numpy.savez(file, ids=numpy.array(ids), logits=logits.numpy())
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror}") from None
