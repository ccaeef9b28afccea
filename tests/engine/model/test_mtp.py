# SPDX-License-Identifier: Apache-2.0
"""The MTP head against a plain reading of its formulas, in pieces and in chains; drafts leave no trace."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
from sparkpair.cache.extents import UNIT
from sparkpair.cache.pool import Place
from sparkpair.cache.state import DsaState, SequenceState, Span
from sparkpair.checkpoint.miniature import miniature_document, write_weights
from sparkpair.checkpoint.rank_weights import RankWeights
from sparkpair.checkpoint.safetensors import Checkpoint
from sparkpair.comm.group import SoloGroup
from sparkpair.drafting.drafter import Ask, Passed
from sparkpair.drafting.mtp import MtpDrafter, MtpState
from sparkpair.drafting.orders import DraftOrder
from sparkpair.model.config import TextConfig, load_text_config
from sparkpair.model.glm5_next import Glm5NextRank
from sparkpair.model.media_rows import MediaRows
from sparkpair.model.mtp import MtpHead

from tests.engine import devices
from tests.engine.devices import DEVICE
from tests.engine.model.configurations import random_text_config
from tests.engine.model.conftest import random_ids

TOLERANCE = 1e-4
Write = Callable[[int], pathlib.Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    written: dict[int, pathlib.Path] = {}

    def write_once(seed: int) -> pathlib.Path:
        if seed not in written:
            written[seed] = tmp_path_factory.mktemp(f"mtp-{seed}")
            config = random_text_config(seed) | {"num_nextn_predict_layers": 1}
            write_weights(written[seed], miniature_document({"text_config": config}), seed, frozenset(range(320)))
        return written[seed]

    return write_once


def load(directory: pathlib.Path) -> tuple[Glm5NextRank, MtpHead]:
    config = load_text_config(directory)
    weights = RankWeights(Checkpoint(directory), config, world=1, rank=0, dtype=torch.float32, device=DEVICE)
    backbone = Glm5NextRank(config, weights, SoloGroup())
    return backbone, MtpHead(backbone, weights)


class PlainHead:
    """The head as its formulas read: whole sequences, expanded heads, one token and one expert at a time."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.config: TextConfig = load_text_config(directory)
        self.checkpoint = Checkpoint(directory)
        self.prefix = f"model.language_model.layers.{self.config.num_layers}"

    def weight(self, name: str, top: bool = False) -> torch.Tensor:
        return self.checkpoint.read(name if top else f"{self.prefix}.{name}").float().to(DEVICE)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt() * self.weight(name)

    def rows(
        self, hidden: torch.Tensor, next_tokens: list[int], pictured: dict[int, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """[n, d] normed rows for hidden [n, d] and the tokens after them; `pictured` rows stand in their place."""
        after = self.weight("model.language_model.embed_tokens.weight", top=True)[next_tokens]
        for row, embedding in (pictured or {}).items():
            after[row] = embedding
        joined = torch.cat([self.norm(after, "enorm.weight"), self.norm(hidden, "hnorm.weight")], dim=1)
        x = joined @ self.weight("eh_proj.weight").T
        x = x + self.attention(self.norm(x, "input_layernorm.weight"))
        x = x + self.experts(self.norm(x, "post_attention_layernorm.weight"))
        return self.norm(x, "shared_head.norm.weight")

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        config, w = self.config, self.weight
        count = x.shape[0]
        latent = self.norm(x @ w("self_attn.q_a_proj.weight").T, "self_attn.q_a_layernorm.weight")
        queries = (latent @ w("self_attn.q_b_proj.weight").T).view(count, config.num_heads, config.qk_head_dim)
        c = self.norm(x @ w("self_attn.kv_a_proj_with_mqa.weight").T, "self_attn.kv_a_layernorm.weight")
        expanded = (c @ w("self_attn.kv_b_proj.weight").T).view(count, config.num_heads, -1)
        keys, values = expanded.split([config.qk_head_dim, config.v_head_dim], dim=-1)
        out = devices.empty(count, config.num_heads, config.v_head_dim)
        for token, selected in enumerate(self.selection(x, latent)):
            for head in range(config.num_heads):
                scores = keys[selected, head] @ queries[token, head] / config.qk_head_dim**0.5
                out[token, head] = torch.softmax(scores, 0) @ values[selected, head]
        return out.flatten(1) @ w("self_attn.o_proj.weight").T

    def selection(self, x: torch.Tensor, latent: torch.Tensor) -> list[list[int]]:
        """The tokens that each token attends to."""
        config = self.config
        size, kpool = config.index_head_dim, config.index_kpool

        def w(name: str) -> torch.Tensor:
            return self.weight(f"self_attn.indexer.{name}")

        raw = x @ w("wk.weight").T
        centred = raw - raw.mean(-1, keepdim=True)
        keys = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w("k_norm.weight") + w("k_norm.bias")
        gates = x @ w("index_kpool_compress_gate").T
        pools = []
        for first in range(0, x.shape[0] - kpool + 1, kpool):
            weights = torch.softmax(gates[first : first + kpool] + w("index_kpool_compress_ape"), dim=0)
            pools.append((weights * keys[first : first + kpool]).sum(0))
        queries = (latent @ w("wq_b.weight").T).view(-1, config.index_heads, size)
        head_weights = x @ w("weights_proj.weight").T * config.index_heads**-0.5
        selections = []
        for token in range(x.shape[0]):
            complete = (token + 1) // kpool
            scores = [
                (head_weights[token] * (queries[token] @ pool * size**-0.5).relu()).sum().item()
                for pool in pools[:complete]
            ]
            best = sorted(range(complete), key=lambda pool: (-scores[pool], pool))[: config.index_topk // kpool]
            chosen = [pool * kpool + offset for pool in best for offset in range(kpool)]
            selections.append(sorted(chosen) + list(range(complete * kpool, token + 1)))
        return selections

    def experts(self, x: torch.Tensor) -> torch.Tensor:
        config = self.config
        out = torch.zeros_like(x)
        for token in range(x.shape[0]):
            scores = torch.sigmoid(self.weight("mlp.gate.weight") @ x[token])
            choice = scores + self.weight("mlp.gate.e_score_correction_bias")
            picked = choice.argsort(descending=True)[: config.experts_per_token]
            total = scores[picked].sum()
            for expert in picked.tolist():
                share = scores[expert] / total * config.routed_scaling
                out[token] += share * self.swiglu(x[token], f"mlp.experts.{expert}")
            out[token] += self.swiglu(x[token], "mlp.shared_experts")
        return out

    def swiglu(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        gate = (self.weight(f"{prefix}.gate_proj.weight") @ x).clamp(max=self.config.swiglu_limit)
        up = (self.weight(f"{prefix}.up_proj.weight") @ x).clamp(-self.config.swiglu_limit, self.config.swiglu_limit)
        return self.weight(f"{prefix}.down_proj.weight") @ (gate * torch.sigmoid(gate) * up)


def absorb(
    head: MtpHead, state: SequenceState, hidden: torch.Tensor, tokens: list[int], *, decode: bool
) -> torch.Tensor:
    rows = head.forward(hidden, head.embed(tokens), [Span(slice(0, len(tokens)), state, decode)])
    state.commit(len(tokens))
    return rows


def backbone_hidden(backbone: Glm5NextRank, ids: list[int]) -> torch.Tensor:
    span = Span(slice(0, len(ids)), backbone.lone_state(), decode=False)
    return backbone.hidden(backbone.absorb(devices.tensor(ids), [span]))


@pytest.mark.parametrize("seed", range(6))
def test_rows_equal_the_plain_reading_whole_in_pieces_and_decoded(seed: int, write: Write) -> None:
    directory = write(seed)
    backbone, head = load(directory)
    ids = random_ids(seed, 76)
    hidden, after = backbone_hidden(backbone, ids[:-1]), ids[1:]
    expected = PlainHead(directory).rows(hidden, after)
    assert expected.std() > 0.5
    assert (absorb(head, head.lone_state(), hidden, after, decode=False) - expected).abs().max() < TOLERANCE
    state = head.lone_state()
    pieces = [
        absorb(head, state, hidden[start:stop], after[start:stop], decode=decode)
        for start, stop, decode in ((0, 33, False), (33, 64, False), (64, 70, True), (70, 75, True))
    ]
    assert (torch.cat(pieces) - expected).abs().max() < TOLERANCE
    assert state.position == 75


def greedy(logits: torch.Tensor, alive: list[int], step: int) -> list[int]:
    found: list[int] = logits.argmax(1).tolist()
    return found


def test_a_chain_feeds_each_draft_with_the_heads_own_row(write: Write) -> None:
    directory = write(1)
    backbone, head = load(directory)
    ids = random_ids(1, 41)
    hidden, after = backbone_hidden(backbone, ids[:-1]), ids[1:]
    state = head.lone_state()
    last = absorb(head, state, hidden, after, decode=False)[-1:]
    (chain,) = head.draft(last, [state], [4], greedy)
    plain = PlainHead(directory)
    for number in range(4):
        row = plain.rows(hidden, after)[-1:]
        expected = int((row @ plain.weight("lm_head.weight", top=True).T).argmax())
        assert chain[number] == expected, f"draft {number}"
        hidden, after = torch.cat([hidden, row]), [*after, expected]


def layer_of(state: SequenceState) -> DsaState:
    layer = state.layers[0]
    assert isinstance(layer, DsaState)
    return layer


def rows_of(layer: DsaState) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.latents.first(layer.latents.length), layer.pooled.first(layer.pooled.length)


def test_drafts_leave_the_states_as_they_were_to_the_bit(write: Write) -> None:
    backbone, head = load(write(0))
    # Lengths at which a chain begins, fills and crosses a pool.
    sequences = [random_ids(seed, length) for seed, length in ((1, 40), (2, 17), (3, 9))]
    states, lasts, before = [], [], []
    for ids in sequences:
        state = head.lone_state()
        lasts.append(absorb(head, state, backbone_hidden(backbone, ids[:-1]), ids[1:], decode=False)[-1:])
        layer = layer_of(state)
        before.append([part.clone() for part in (*rows_of(layer), *layer.open)])
        states.append(state)
    together = head.draft(torch.cat(lasts), states, [7] * 3, greedy)
    for state, kept, ids in zip(states, before, sequences, strict=True):
        layer = layer_of(state)
        now = (*rows_of(layer), *layer.open)
        assert state.position == len(ids) - 1
        assert all(torch.equal(new, old) for new, old in zip(now, kept, strict=True))
    # And what comes next is what would have come without them: drafted alone, every chain is the same.
    alone = [head.draft(last, [state], [7], greedy)[0] for last, state in zip(lasts, states, strict=True)]
    assert alone == together
    assert all(len(chain) == 7 for chain in together)


def drafted_state(drafter: MtpDrafter) -> SequenceState:
    """The empty state of a sequence that the drafter drafts for, with a pool of its own."""
    backbone = drafter._head.backbone
    pool, place = backbone.new_pool(UNIT, drafter_layers=drafter.pool_layers), Place(0, UNIT)
    state = backbone.new_state(pool, place)
    state.draft = drafter.new_state(pool, place)
    return state


def test_the_drafter_absorbs_the_rows_that_stay_and_guesses_as_the_plain_reading(write: Write) -> None:
    directory = write(1)
    backbone, head = load(directory)
    drafter = MtpDrafter(head)
    ids = random_ids(9, 90)
    state = drafted_state(drafter)

    def run(tokens: list[int], *, decode: bool) -> None:
        part = Passed(state, slice(0, len(tokens)), tokens, decode)
        backbone.forward(devices.tensor(tokens), [Span(part.rows, state, decode)], [], watch=drafter.watch)
        drafter.passed([part])

    run(ids[:64], decode=False)
    run(ids[64:74], decode=False)
    drafter.draft([Ask(state, 0, ids[74], DraftOrder(0))])
    at = 74
    for kept in (3, 1, 5):
        run([*ids[at : at + kept], 7, 9], decode=True)
        at += kept
        state.commit(kept)
        (chain,) = drafter.draft([Ask(state, kept, ids[at], DraftOrder(2))])
        plain = PlainHead(directory)
        hidden, after = backbone_hidden(backbone, ids[:at]), ids[1 : at + 1]
        for number in range(2):
            row = plain.rows(hidden, after)[-1:]
            expected = int((row @ plain.weight("lm_head.weight", top=True).T).argmax())
            assert chain[number] == expected, f"draft {number} behind {at} tokens"
            hidden, after = torch.cat([hidden, row]), [*after, expected]


def test_the_drafter_reads_pictures_as_the_backbone_does_also_where_a_portion_ends_in_one(write: Write) -> None:
    directory = write(2)
    backbone, head = load(directory)
    drafter = MtpDrafter(head)
    ids = random_ids(4, 90)
    media = list(range(20, 50))
    rows = devices.randn(30, backbone.config.hidden_size, seed=3)
    state, whole = drafted_state(drafter), backbone.lone_state()
    assert isinstance(state.draft, MtpState)
    for start, stop in ((0, 32), (32, 89)):
        own = [at for at in media if start <= at < stop]
        part = Passed(state, slice(0, stop - start), ids[start:stop], False)
        placed = MediaRows([at - start for at in own], rows[own[0] - 20 : own[-1] - 19])
        span = Span(part.rows, state, decode=False)
        backbone.forward(devices.tensor(ids[start:stop]), [span], [], placed, watch=drafter.watch)
        drafter.passed([part])
    (chain,) = drafter.draft([Ask(state, 0, ids[89], DraftOrder(1))])
    streams = backbone.absorb(
        devices.tensor(ids[:89]), [Span(slice(0, 89), whole, decode=False)], MediaRows(media, rows)
    )
    hidden, pictured = backbone.hidden(streams), {at - 1: row for at, row in zip(media, rows, strict=True)}
    latents = rows_of(layer_of(state.draft.head))[0]
    for seen, near in ((pictured, True), ({}, False)):
        after = head.embed(ids[1:90])
        for row, embedding in seen.items():
            after[row] = embedding
        by_hand = head.lone_state()
        head.forward(hidden, after, [Span(slice(0, 89), by_hand, decode=False)])
        assert bool((rows_of(layer_of(by_hand))[0] - latents).abs().max() < TOLERANCE) is near
    plain = PlainHead(directory)
    last = plain.rows(hidden, ids[1:90], pictured)[-1]
    assert chain == [int((plain.weight("lm_head.weight", top=True) @ last).argmax())]
