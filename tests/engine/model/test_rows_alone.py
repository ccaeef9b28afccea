# SPDX-License-Identifier: Apache-2.0
"""A row is alone: its logits have the same bits whatever else is computed beside it, and however a prompt is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair import kernels
from sparkpair.cache.state import SequenceState, Span
from sparkpair.model.glm5_next import Glm5NextRank

from tests.engine.devices import DEVICE, randn
from tests.engine.model.conftest import random_ids

Load = Callable[[int], Glm5NextRank]

# Seeds of the random configurations with pools of 1, 4 and 16 tokens.
SEEDS = (0, 1, 2)


def absorb(model: Glm5NextRank, state: SequenceState, ids: list[int], *, decode: bool = False) -> torch.Tensor:
    span = Span(slice(0, len(ids)), state, decode=decode)
    logits = model.forward(torch.tensor(ids, device=DEVICE), [span], list(range(len(ids))))
    state.commit(len(ids))
    return logits


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cuts", [[64], [128], [64, 128], [64, 192, 256]], ids=str)
def test_a_prompt_cut_on_the_64_token_grid_keeps_its_bits(seed: int, cuts: list[int], solo_model: Load) -> None:
    model = solo_model(seed)
    ids = random_ids(seed, 300)
    whole = absorb(model, model.lone_state(), ids)
    state = model.lone_state()
    pieces = [absorb(model, state, ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("height", [2, 3, 7, 16])
def test_a_verify_window_has_the_bits_of_serial_decoding(seed: int, height: int, solo_model: Load) -> None:
    model = solo_model(seed)
    prompt, reply = random_ids(seed, 70), random_ids(seed + 100, 48)
    serial_state, window_state = model.lone_state(), model.lone_state()
    absorb(model, serial_state, prompt)
    absorb(model, window_state, prompt)
    serial = torch.cat([absorb(model, serial_state, [token], decode=True) for token in reply])
    windows = [absorb(model, window_state, reply[at : at + height], decode=True) for at in range(0, len(reply), height)]
    assert torch.equal(torch.cat(windows), serial)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kept", [1, 2, 5, 6])
def test_rejected_rows_leave_no_trace(seed: int, kept: int, solo_model: Load) -> None:
    model = solo_model(seed)
    prompt, reply, wrong = random_ids(seed, 70), random_ids(seed + 100, 40), random_ids(seed + 200, 40)
    serial_state, drafted_state = model.lone_state(), model.lone_state()
    absorb(model, serial_state, prompt)
    absorb(model, drafted_state, prompt)
    serial = torch.cat([absorb(model, serial_state, [token], decode=True) for token in reply])
    found = []
    for at in range(0, len(reply), kept):
        right = reply[at : at + kept]
        window = right + wrong[at : at + 6 - len(right)]
        span = Span(slice(0, len(window)), drafted_state, decode=True)
        found.append(model.forward(torch.tensor(window, device=DEVICE), [span], list(range(len(right)))))
        drafted_state.commit(len(right))
    assert torch.equal(torch.cat(found), serial)
    assert drafted_state.position == serial_state.position


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_decoded_and_filled_together_have_the_bits_of_each_alone(seed: int, solo_model: Load) -> None:
    model = solo_model(seed)
    prompts = [random_ids(seed + part, length) for part, length in enumerate((5, 64, 130))]
    fill = random_ids(seed + 9, 77)

    def prepared() -> list[SequenceState]:
        states = [model.lone_state() for _ in prompts]
        for state, prompt in zip(states, prompts, strict=True):
            absorb(model, state, prompt)
        return states

    windows = [[7], [8, 9, 10], [11, 12]]
    alone = [absorb(model, state, window, decode=True) for state, window in zip(prepared(), windows, strict=True)]
    alone.append(absorb(model, model.lone_state(), fill))
    tokens: list[int] = []
    spans: list[Span] = []
    for state, rows, decode in [
        *((state, window, True) for state, window in zip(prepared(), windows, strict=True)),
        (model.lone_state(), fill, False),
    ]:
        spans.append(Span(slice(len(tokens), len(tokens) + len(rows)), state, decode=decode))
        tokens.extend(rows)
    together = model.forward(torch.tensor(tokens, device=DEVICE), spans, list(range(len(tokens))))
    assert torch.equal(together, torch.cat(alone))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_a_row_of_a_product_has_the_same_bits_wherever_it_stands(outputs: int, eighths: int, seed: int) -> None:
    x, weight = randn(11, 8 * eighths, seed=seed), randn(outputs, 8 * eighths, seed=seed + 1)
    whole = kernels.linear(x, weight)
    for row in range(11):
        assert torch.equal(kernels.linear(x[row : row + 1], weight)[0], whole[row])
    assert torch.equal(kernels.linear(x[3:], weight), whole[3:])


@given(st.integers(1, 200), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_an_element_of_a_gate_has_the_same_bits_wherever_it_stands(count: int, seed: int) -> None:
    x = randn(count, seed=seed)
    whole = kernels.sigmoid(x)
    assert torch.equal(torch.cat([kernels.sigmoid(x[at : at + 1]) for at in range(count)]), whole)
