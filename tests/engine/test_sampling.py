# SPDX-License-Identifier: Apache-2.0
"""Keyed sampling: published vectors, filters, and independence of everything but seed, position and logits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkpair.request import SamplingParams
from sparkpair.sampling import keyed_noise, keyed_uniform, prompt_seed, sample


@pytest.mark.parametrize(
    ("seed", "position", "token", "expected"),
    [
        (0, 0, 0, 0.20310281705476102),
        (1234, 10, 42, 0.8056960556036823),
        (1234, 11, 42, 0.3764920675936793),
        (7, 1, 154879, 0.10177040781180952),
        (2**63 - 1, 1048575, 154828, 0.4030164135240802),
    ],
)
def test_the_keyed_uniform_equals_the_published_vectors(seed: int, position: int, token: int, expected: float) -> None:
    assert keyed_uniform(seed, position, numpy.array([token]))[0] == expected


def test_the_noise_is_the_gumbel_transform_of_the_uniform() -> None:
    assert keyed_noise(1234, 10, numpy.array([42]))[0] == pytest.approx(1.53225138827157, abs=1e-13)


def test_the_default_seed_equals_the_published_vector() -> None:
    assert prompt_seed([154822, 154824, 154826]) == 8271908990459473263


def logits_of(seed: int, count: int = 200) -> numpy.typing.NDArray[numpy.float32]:
    return numpy.random.default_rng(seed).normal(0, 2, count).astype(numpy.float32)


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    logits = numpy.array([1.0, 3.0, 3.0, 0.0], dtype=numpy.float32)
    assert sample(logits, SamplingParams(temperature=0.0), seed=5, position=9) == 1


@pytest.mark.parametrize(
    "params",
    [SamplingParams(top_k=1), SamplingParams(top_p=1e-6), SamplingParams(min_p=1.0)],
    ids=["top_k", "top_p", "min_p"],
)
def test_the_tightest_filter_leaves_the_likeliest_token(params: SamplingParams) -> None:
    logits = logits_of(3)
    for position in range(20):
        assert sample(logits, params, seed=1, position=position) == int(logits.argmax())


def test_top_k_draws_only_from_the_k_likeliest_and_from_all_of_them() -> None:
    logits = logits_of(4)
    best = set(numpy.argsort(-logits)[:5].tolist())
    drawn = {sample(logits, SamplingParams(temperature=3.0, top_k=5), seed=2, position=p) for p in range(300)}
    assert drawn == best


def test_top_p_keeps_the_token_that_reaches_the_mass() -> None:
    # Probabilities 0.5, 0.3, 0.2: the first token alone has the mass 0.5, so 0.5 keeps one and 0.51 keeps two.
    logits = numpy.log(numpy.array([0.5, 0.3, 0.2])).astype(numpy.float32)

    def drawn(top_p: float) -> set[int]:
        return {sample(logits, SamplingParams(top_p=top_p), seed=8, position=p) for p in range(200)}

    assert drawn(0.49) == {0}
    assert drawn(0.51) == {0, 1}
    assert drawn(0.81) == {0, 1, 2}


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = numpy.log(numpy.array([0.6, 0.31, 0.09])).astype(numpy.float32)
    drawn = {sample(logits, SamplingParams(min_p=0.5), seed=8, position=p) for p in range(200)}
    assert drawn == {0, 1}


def test_a_forbidden_token_is_never_drawn() -> None:
    logits = logits_of(5)
    logits[int(logits.argmax())] = -numpy.inf
    for position in range(50):
        token = sample(logits, SamplingParams(temperature=5.0), seed=1, position=position)
        assert logits[token] > -numpy.inf


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**20))
@settings(max_examples=50, deadline=None)
def test_a_draw_depends_on_seed_position_and_logits_alone(seed: int, position: int) -> None:
    logits = logits_of(6)
    params = SamplingParams(temperature=1.0, top_p=0.95)
    first = sample(logits, params, seed, position)
    sample(logits_of(7), params, seed ^ 1, position + 1)
    assert sample(logits.copy(), params, seed, position) == first


def test_frequencies_follow_the_probabilities() -> None:
    probabilities = numpy.array([0.5, 0.3, 0.2])
    logits = numpy.log(probabilities).astype(numpy.float32)
    counts = numpy.bincount([sample(logits, SamplingParams(), seed=11, position=p) for p in range(6000)], minlength=3)
    # Three standard deviations of the largest bin are 0.02.
    assert numpy.abs(counts / 6000 - probabilities).max() < 0.02


def in_full_order(logits: numpy.typing.NDArray[numpy.float32], params: SamplingParams, seed: int, position: int) -> int:
    """The definition, with every candidate put in order."""
    ids = numpy.flatnonzero(logits > -numpy.inf)
    scaled = logits[ids].astype(numpy.float64) / params.temperature
    order = numpy.lexsort((ids, -scaled))
    ids, scaled = ids[order], scaled[order]
    if params.top_k:
        ids, scaled = ids[: params.top_k], scaled[: params.top_k]
    if params.top_p < 1:
        masses = numpy.floor(numpy.exp(scaled - scaled[0]) * 2.0**40).astype(numpy.int64)
        need = math.ceil(Fraction(str(params.top_p)) * int(masses.sum()))
        count = int(numpy.flatnonzero(numpy.cumsum(masses) >= need)[0]) + 1
        ids, scaled = ids[:count], scaled[:count]
    keep = scaled >= scaled[0] + math.log(params.min_p) if params.min_p else scaled > -numpy.inf
    ids, scaled = ids[keep], scaled[keep]
    noisy = scaled + keyed_noise(seed, position, ids)
    return int(ids[numpy.lexsort((ids, -noisy))[0]])


@given(
    seed=st.integers(0, 10**6),
    count=st.sampled_from([1, 7, 300, 1500, 5000]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 5.0, 200.0]),
    whole=st.booleans(),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([1e-4, 0.7, 1.0, 30.0]),
        top_p=st.sampled_from([1e-6, 0.5, 0.95, 0.999999, 1.0]),
        top_k=st.sampled_from([0, 1, 40, 2000]),
        min_p=st.sampled_from([0.0, 0.05, 1.0]),
    ),
)
@settings(max_examples=300, deadline=None)
def test_a_draw_is_the_one_that_the_full_order_defines(
    seed: int, count: int, spread: float, whole: bool, params: SamplingParams
) -> None:
    """`whole` logits have many ties."""
    rng = numpy.random.default_rng(seed)
    logits = rng.normal(0, spread, count).astype(numpy.float32)
    logits = numpy.round(logits) if whole else logits
    logits[1:][rng.random(count - 1) < 0.2] = -numpy.inf
    for position in range(3):
        assert sample(logits, params, seed, position) == in_full_order(logits, params, seed, position)


def test_default_sampling_takes_a_fraction_of_the_time_that_ordering_a_vocabulary_takes() -> None:
    logits = numpy.random.default_rng(9).normal(0, 2, 154_880).astype(numpy.float32)
    logits[[5, 700, 90_000]] += 20
    ids = numpy.arange(len(logits))

    def seconds(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(7):
            started = time.thread_time()
            work()
            taken.append(time.thread_time() - started)
        return min(taken)

    params = SamplingParams(temperature=1.0, top_p=0.95)
    drawing = seconds(lambda: sample(logits, params, seed=1, position=1))
    assert drawing < 0.4 * seconds(lambda: numpy.lexsort((ids, -logits.astype(numpy.float64))))
