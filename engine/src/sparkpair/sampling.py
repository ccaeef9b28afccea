# SPDX-License-Identifier: Apache-2.0
"""Keyed sampling: the token at a position is a function of (seed, position, logits), and of nothing else.

Noise for a candidate comes from a hash of (seed, position, token id), so a draw does not depend on which other requests
run, on drafts, or on how the vocabulary is divided between ranks. The nucleus is found with integer masses, whose sum
is exact in any order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy
import numpy.typing

from sparkpair.request import SamplingParams

Floats = numpy.typing.NDArray[numpy.float64]
Ids = numpy.typing.NDArray[numpy.int64]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_POSITION = 0xD1B54A32D192ED03
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

# Resolution of a probability mass: exp(scaled - max) * 2^40, floored to an integer.
_MASS_BITS = 40

# A value that far below the largest has no mass. The nucleus is looked for from the largest down by these steps, then
# by halves, until so few candidates are left.
_NO_MASS = 28.0
_GAPS = numpy.array([1.0, 2.0, 4.0, 8.0, 16.0])
_FEW = 1024


def _mix_int(z: int) -> int:
    """The splitmix64 finaliser on one number."""
    z ^= z >> 30
    z = z * _MIX_1 & _MASK
    z ^= z >> 27
    z = z * _MIX_2 & _MASK
    return z ^ z >> 31


def _mix(z: numpy.typing.NDArray[numpy.uint64]) -> numpy.typing.NDArray[numpy.uint64]:
    """The splitmix64 finaliser on an array."""
    z = z ^ (z >> numpy.uint64(30))
    z = z * numpy.uint64(_MIX_1)
    z = z ^ (z >> numpy.uint64(27))
    z = z * numpy.uint64(_MIX_2)
    return z ^ (z >> numpy.uint64(31))


def keyed_uniform(seed: int, position: int, ids: Ids) -> Floats:
    """Uniform numbers in (0, 1) for token `ids` [n] at an absolute `position`, fp64."""
    first = _mix_int((seed + _GOLDEN) & _MASK)
    second = _mix_int(first ^ position * _POSITION & _MASK)
    mixed = _mix(numpy.uint64(second) ^ ids.astype(numpy.uint64))
    return (mixed >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53 + 2.0**-54


def keyed_noise(seed: int, position: int, ids: Ids) -> Floats:
    """Gumbel noise -ln(-ln u) of `keyed_uniform`, fp64 [n]."""
    noise: Floats = -numpy.log(-numpy.log(keyed_uniform(seed, position, ids)))
    return noise


def prompt_seed(prompt_ids: Sequence[int], salt: int = 0) -> int:
    """The seed of a request that names none: 63 bits of SHA-256 over the prompt's ids. A repeat repeats its reply."""
    text = ",".join(map(str, prompt_ids)) + f"|{salt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") & (2**63 - 1)


def _ordered(scaled: Floats, ids: Ids, places: Ids) -> Ids:
    """The places by value descending, id ascending."""
    ordered: Ids = places[numpy.lexsort((ids[places], -scaled[places]))]
    return ordered


def _nucleus(scaled: Floats, ids: Ids, top_p: float) -> tuple[Floats, Ids]:
    """The smallest leading part of (value descending, id ascending) whose integer mass reaches top_p of the whole, in
    any order. Only what lies around its end is put in order: with a whole vocabulary that takes most of a step.
    """
    top = scaled.max()
    masses = numpy.floor(numpy.exp(scaled - top) * 2.0**_MASS_BITS).astype(numpy.int64)
    need = math.ceil(Fraction(str(top_p)) * int(masses.sum()))
    sure: list[Ids] = []
    rest: Ids = numpy.arange(len(ids))
    bounds = iter(top - _GAPS)
    while len(rest) > _FEW:
        values = scaled[rest]
        bound = next(bounds, None)
        above = values >= (numpy.partition(values, len(values) // 2)[len(values) // 2] if bound is None else bound)
        if bound is None and above.all():
            break
        mass = int(masses[rest[above]].sum())
        if mass < need:
            sure.append(rest[above])
            need -= mass
            rest = rest[~above]
        else:
            rest = rest[above]
            bounds = iter(())
    rest = _ordered(scaled, ids, rest)
    kept = numpy.concatenate([*sure, rest[: int(numpy.searchsorted(numpy.cumsum(masses[rest]), need)) + 1]])
    return scaled[kept], ids[kept]


def sample(logits: numpy.typing.NDArray[numpy.float32], params: SamplingParams, seed: int, position: int) -> int:
    """Draw the token for absolute `position` (the first reply token stands at len(prompt)).

    `logits` [vocab] fp32; entries of -inf are never drawn. Filters apply in the order temperature, top_k, top_p, min_p.
    Greedy (temperature 0 or below) takes the largest logit, the lowest id on ties.
    """
    if params.temperature <= 0:
        return int(numpy.argmax(logits))
    least = -numpy.inf
    if params.top_p < 1:
        # What has no mass is in no nucleus.
        least = float(numpy.fmax.reduce(logits)) - _NO_MASS * params.temperature
    ids: Ids = numpy.flatnonzero((logits > -numpy.inf) & (logits >= numpy.float64(least))).astype(numpy.int64)
    scaled: Floats = logits[ids].astype(numpy.float64) / params.temperature
    if 0 < params.top_k < len(ids):
        least = numpy.partition(scaled, -params.top_k)[-params.top_k]
        kept = _ordered(scaled, ids, numpy.flatnonzero(scaled >= least))[: params.top_k]
        scaled, ids = scaled[kept], ids[kept]
    if params.top_p < 1:
        scaled, ids = _nucleus(scaled, ids, params.top_p)
    if params.min_p > 0:
        keep = scaled >= scaled.max() + math.log(params.min_p)
        scaled, ids = scaled[keep], ids[keep]
    noisy = scaled + keyed_noise(seed, position, ids)
    return int(ids[noisy == noisy.max()].min())
