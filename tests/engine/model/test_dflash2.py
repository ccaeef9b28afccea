# SPDX-License-Identifier: Apache-2.0
"""The DFlash2 drafter against a plain reading of its formulas: context, block, selector, window, ranks, refusals."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import pathlib
from typing import Any

import pytest
import torch
from sparkpair.cache.pool import Place
from sparkpair.cache.state import SequenceState, Span
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.checkpoint.miniature_drafter import drafter_document, write_drafter, write_drafter_files
from sparkpair.checkpoint.rank_weights import Layout, RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import Group, SoloGroup
from sparkpair.comm.local import join_store, local_group, open_store
from sparkpair.drafting.dflash2 import DFlash2Drafter, DFlash2State, best_candidates
from sparkpair.drafting.drafter import Ask, Passed
from sparkpair.drafting.files import find_dflash2
from sparkpair.drafting.orders import DraftOrder
from sparkpair.drafting.source import WINDOW_ROWS, DFlash2Source
from sparkpair.errors import UserError
from sparkpair.model.config import load_text_config
from sparkpair.model.dflash2 import DFlash2Rank, DrafterWeights
from sparkpair.model.dflash2_config import load_dflash2_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.sampling import keyed_noise

from tests.engine import devices
from tests.engine.devices import DEVICE, ranks_as_threads
from tests.engine.model.configurations import random_text_config
from tests.engine.model.conftest import random_ids

TOLERANCE = 1e-4
BLOCK = 5
WINDOW = 20


@dataclasses.dataclass(frozen=True)
class Pair:
    target: pathlib.Path
    drafter: pathlib.Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("dflash2")
    found = Pair(directory / "target", directory / "drafter")
    found.target.mkdir()
    found.drafter.mkdir()
    write_weights(found.target, miniature_document({"text_config": random_text_config(4)}), 4, frozenset(range(320)))
    target = load_text_config(found.target)
    document = drafter_document(target)
    document |= {"head_dim": 8, "sliding_window": WINDOW}
    document["dflash_config"] |= {"block_size": BLOCK, "selector_rank": 6, "selector_top_k": 7}
    write_drafter_files(found.drafter, document, target, 4)
    return found


def load(pair: Pair, group: Group) -> DFlash2Rank:
    target, checkpoint = load_text_config(pair.target), Checkpoint(pair.drafter)
    weights = RankWeights(
        Checkpoint(pair.target),
        target,
        world=group.world,
        rank=group.rank,
        dtype=torch.float32,
        device=DEVICE,
    )
    model = Glm5NextRank(target, weights, group)
    config = load_dflash2_config(pair.drafter, target, group.world)
    return DFlash2Rank(config, DrafterWeights(checkpoint, config, model), model)


class PlainDrafter:
    """The drafter as its formulas read: one row, one head, one channel group at a time."""

    def __init__(self, pair: Pair) -> None:
        self.checkpoint, self.target = Checkpoint(pair.drafter), Checkpoint(pair.target)
        self.config = json.loads((pair.drafter / "config.json").read_text())
        self.eps = self.config["rms_norm_eps"]

    def w(self, name: str) -> torch.Tensor:
        return self.checkpoint.read(name).float().to(DEVICE)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean() + self.eps).sqrt() * self.w(name)

    def rope(self, head: torch.Tensor, position: int) -> torch.Tensor:
        half = head.shape[0] // 2
        out = head.clone()
        for index in range(half):
            angle = position * 10000 ** (-index / half)
            left, right = head[index], head[index + half]
            out[index] = left * math.cos(angle) - right * math.sin(angle)
            out[index + half] = right * math.cos(angle) + left * math.sin(angle)
        return out

    def heads(self, x: torch.Tensor, layer: int, name: str, position: int) -> list[torch.Tensor]:
        """Normed and turned heads of one row."""
        prefix = f"layers.{layer}.self_attn.{name}"
        split = (self.w(f"{prefix}_proj.weight") @ x).split(self.config["head_dim"])
        return [self.rope(self.norm(head, f"{prefix}_norm.weight"), position) for head in split]

    def values(self, x: torch.Tensor, layer: int) -> list[torch.Tensor]:
        return list((self.w(f"layers.{layer}.self_attn.v_proj.weight") @ x).split(self.config["head_dim"]))

    def convolve(
        self, rows: list[torch.Tensor], normed: list[torch.Tensor], prefix: str, branch: int
    ) -> list[torch.Tensor]:
        base, group = self.w(f"{prefix}.base_kernel")[branch], self.config["dflash_config"]["conv_group_size"]
        groups = self.config["hidden_size"] // group
        out = []
        for number, row in enumerate(rows):
            added = (self.w(f"{prefix}.kernel_projection.weight") @ normed[number]).view(2, 2, groups)[branch]
            before = rows[number - 1] if number else torch.zeros_like(row)
            mixed = [
                (base[0, channel] + added[0, channel // group]) * row[channel]
                + (base[1, channel] + added[1, channel // group]) * before[channel]
                for channel in range(len(row))
            ]
            out.append(torch.stack(mixed))
        return out

    def block(self, taps: torch.Tensor, pending: int) -> torch.Tensor:
        """[block, d] normed rows behind a context of `taps` [n, taps * d]."""
        position, size = taps.shape[0], self.config["dflash_config"]["block_size"]
        context = [self.norm(self.w("fc.weight") @ row, "hidden_norm.weight") for row in taps]
        table = self.target.read("model.language_model.embed_tokens.weight").float().to(DEVICE)
        x = [table[pending]] + [table[self.config["dflash_config"]["mask_token_id"]]] * (size - 1)
        shared = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}"
            normed = [self.norm(row, f"{prefix}.input_layernorm.weight") for row in x]
            rows = self.convolve(normed, normed, f"{prefix}.attention_conv", 0)
            places = [*range(position), *range(position, position + size)]
            keys = [self.heads(row, layer, "k", place) for place, row in zip(places, [*context, *rows], strict=True)]
            values = [self.values(row, layer) for row in [*context, *rows]]
            branch = []
            for number, row in enumerate(rows):
                seen = [place for place in places if place >= position or position + number - place <= WINDOW - 1]
                attended = []
                for head, query in enumerate(self.heads(row, layer, "q", position + number)):
                    scores = torch.stack([keys[place][head // shared] @ query for place in seen])
                    weights = torch.softmax(scores / self.config["head_dim"] ** 0.5, 0)
                    attended.append(weights @ torch.stack([values[place][head // shared] for place in seen]))
                branch.append(self.w(f"{prefix}.self_attn.o_proj.weight") @ torch.cat(attended))
            mixed = self.convolve(branch, normed, f"{prefix}.attention_conv", 1)
            x = [row + more for row, more in zip(x, mixed, strict=True)]
            normed = [self.norm(row, f"{prefix}.post_attention_layernorm.weight") for row in x]
            rows = self.convolve(normed, normed, f"{prefix}.mlp_conv", 0)
            fed = []
            for row in rows:
                gate, up = (self.w(f"{prefix}.mlp.{name}_proj.weight") @ row for name in ("gate", "up"))
                fed.append(self.w(f"{prefix}.mlp.down_proj.weight") @ (gate * torch.sigmoid(gate) * up))
            mixed = self.convolve(fed, normed, f"{prefix}.mlp_conv", 1)
            x = [row + more for row, more in zip(x, mixed, strict=True)]
        return torch.stack([self.norm(row, "norm.weight") for row in x])

    def chain(self, rows: torch.Tensor, pending: int, position: int, order: DraftOrder) -> list[int]:
        selector, last, found = "candidate_selector", pending, []
        before, after = (self.w(f"{selector}.{name}_codebook").double() for name in ("predecessor", "successor"))
        for number in range(1, len(rows)):
            z = (self.w(f"{selector}.hidden_projection.weight") @ rows[number]).double()
            unary = (self.target.read("lm_head.weight").float().to(DEVICE) @ rows[number]).double()
            best = sorted(range(len(unary)), key=lambda token: (-unary[token].item(), token))
            scores = {}
            for token in best[: self.config["dflash_config"]["selector_top_k"]]:
                scores[token] = float(unary[token] + (before[last] * z * after[token]).sum())
                if order.temperature:
                    noise = keyed_noise(order.seed, position + number, torch.tensor([token]).numpy())
                    scores[token] = scores[token] / order.temperature + float(noise[0])
            last = max(scores, key=lambda token: scores[token])
            found.append(last)
        return found


def taps_of(drafter: DFlash2Rank, ids: list[int]) -> torch.Tensor:
    """[n, taps * d]: the means of the tapped layers' streams for a whole prompt."""
    found: list[torch.Tensor] = []

    def watch(layer: int, streams: torch.Tensor) -> None:
        if layer in drafter.config.taps:
            found.append(streams.mean(1))

    span = Span(slice(0, len(ids)), drafter.target.lone_state(), decode=False)
    drafter.target.absorb(devices.tensor(ids), [span], watch=watch)
    return torch.cat(found, dim=1)


def run(drafter: DFlash2Drafter, model: Glm5NextRank, state: SequenceState, tokens: list[int], *, decode: bool) -> None:
    part = Passed(state, slice(0, len(tokens)), tokens, decode)
    span = Span(part.rows, state, decode)
    model.forward(devices.tensor(tokens), [span], [], watch=drafter.watch)
    drafter.passed([part])


def state_of(state: SequenceState) -> DFlash2State:
    assert isinstance(state.draft, DFlash2State)
    return state.draft


ORDERS = [DraftOrder(BLOCK - 1), DraftOrder(BLOCK - 1, softening=2.0, seed=11, temperature=0.8)]


@pytest.mark.parametrize("length", [1, 7, 19, 33])
def test_block_and_chain_equal_the_plain_reading(pair: Pair, length: int) -> None:
    model, plain = load(pair, SoloGroup()), PlainDrafter(pair)
    ids = random_ids(length, length + 1)
    taps = taps_of(model, ids[:-1])
    rows = model.context(taps, devices.arange(length))
    (found,) = model.block([ids[-1]], [length], [rows[-(WINDOW - 1) :]])
    expected = plain.block(taps, ids[-1])
    assert expected.std() > 0.5
    assert (found - expected).abs().max() < TOLERANCE
    state = SequenceState([], length, DFlash2State(DFlash2Drafter(model).empty_state().rows))
    state_of(state).append(rows)
    for order in ORDERS:
        (chain,) = DFlash2Drafter(model).draft([Ask(state, 0, ids[-1], order)])
        assert chain == plain.chain(expected, ids[-1], length, order)


def test_pieces_windows_and_rejected_rows_leave_the_context_of_the_whole_sequence(pair: Pair) -> None:
    model = load(pair, SoloGroup())
    drafter = DFlash2Drafter(model)
    ids = random_ids(3, 80)
    state = model.target.lone_state()
    state.draft = drafter.empty_state()
    run(drafter, model.target, state, ids[:64], decode=False)
    kept = state_of(state).keep(64)
    # Two windows, of which five and one rows are right.
    at = 64
    for right in (5, 1):
        run(drafter, model.target, state, [*ids[at : at + right], 7, 9], decode=True)
        at += right
        state.commit(right)
        drafter.draft([Ask(state, right, ids[at], DraftOrder(0))])
    own = state_of(state)
    whole = model.context(taps_of(model, ids[:at]), devices.arange(at))
    assert own.position == at
    assert (own.rows.rows - whole[-(WINDOW - 1) :]).abs().max() < TOLERANCE
    resumed = kept.resume(Place(0, 0))
    assert resumed.position == 64
    assert (resumed.rows.rows - whole[:64][-(WINDOW - 1) :]).abs().max() < TOLERANCE


@ranks_as_threads
def test_two_ranks_divide_the_drafter_and_hold_the_same_block(pair: Pair) -> None:
    ids = random_ids(5, 26)
    store = open_store(2)

    def rank(number: int) -> torch.Tensor:
        model = load(pair, local_group(store if number == 0 else join_store(store.port, 2), number, 2))
        rows = model.context(taps_of(model, ids[:-1]), devices.arange(25))
        return model.block([ids[-1]], [25], [rows[-(WINDOW - 1) :]])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))
    alone = load(pair, SoloGroup())
    rows = alone.context(taps_of(alone, ids[:-1]), devices.arange(25))
    assert torch.equal(first, second)
    assert (first - alone.block([ids[-1]], [25], [rows[-(WINDOW - 1) :]])).abs().max() < TOLERANCE


def test_the_estimate_counts_what_loading_takes(pair: Pair) -> None:
    target = load_text_config(pair.target)
    model = load(pair, SoloGroup())
    weights = DrafterWeights(Checkpoint(pair.drafter), model.config, model.target)
    DFlash2Rank(model.config, weights, model.target)
    source = DFlash2Source(find_dflash2(pair.drafter, target, 2))
    need = source.need(Layout(1, 0, torch.float32))
    assert need.held == weights.bytes_held
    row = model.context_width * 4
    tail = DFlash2Drafter(model).empty_state().rows
    tail.append(devices.zeros(5000, model.context_width))
    assert need.per_stream == tail.nbytes + WINDOW_ROWS * row
    assert need.per_entry >= tail.rows.shape[0] * row
    halves = [source.need(Layout(2, rank, torch.float32)) for rank in range(2)]
    assert sum(half.per_stream for half in halves) == need.per_stream
    assert need.held < sum(half.held for half in halves) < 2 * need.held


def test_candidates_are_the_largest_and_of_equal_ones_the_lowest_ids() -> None:
    logits = devices.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])
    ids, values = best_candidates(logits, 4)
    assert ids.tolist() == [1, 3, 2, 4]
    assert values.tolist() == [3.0, 3.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("where", "field", "value", "reason"),
    [
        ("", "hidden_size", 80, r"hidden_size is 80, expected \d+ as in the model"),
        ("", "vocab_size", 100, r"vocab_size is 100, expected 320 as in the model"),
        ("", "num_target_layers", 45, r"num_target_layers is 45, expected \d+ as in the model"),
        ("", "architectures", ["Other"], r"architectures is \['Other'\]"),
        ("", "layer_types", ["full_attention"] * 2, "sliding_attention in every layer"),
        ("", "is_causal", True, "is_causal is True"),
        ("", "num_attention_heads", 5, "num_attention_heads is 5, expected a multiple of 3"),
        ("dflash_config", "target_layer_ids", [1, 99], r"dflash_config: target_layer_ids is \[1, 99\]"),
        ("dflash_config", "mask_token_id", 320, "mask_token_id is 320, expected a row"),
        ("dflash_config", "conv_kernel_size", 3, "conv_kernel_size is 3, expected 2"),
        ("dflash_config", "selector_rank", 12, r"hidden_projection.weight is \(6, \d+\), its config.json says \(12, "),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused_by_field(
    pair: Pair, tmp_path: pathlib.Path, where: str, field: str, value: Any, reason: str
) -> None:
    document = json.loads((pair.drafter / "config.json").read_text())
    (document[where] if where else document)[field] = value
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "model.safetensors").symlink_to(pair.drafter / "model.safetensors")
    with pytest.raises(UserError, match=reason):
        find_dflash2(tmp_path, load_text_config(pair.target), 1)


def test_the_miniature_drafter_fits_its_target_and_is_the_same_for_a_seed(pair: Pair, tmp_path: pathlib.Path) -> None:
    for name in ("first", "second"):
        write_drafter(tmp_path / name, pair.target, seed=1)
        find_dflash2(tmp_path / name, load_text_config(pair.target), 3)
    assert (tmp_path / "first/manifest.json").read_bytes() == (tmp_path / "second/manifest.json").read_bytes()
    with pytest.raises(UserError, match="--tp 4: the drafter has only 3 key heads"):
        find_dflash2(tmp_path / "first", load_text_config(pair.target), 4)
