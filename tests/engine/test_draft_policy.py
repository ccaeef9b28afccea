# SPDX-License-Identifier: Apache-2.0
"""Draft policies: every form is read as it is written, every other refused by name with what is allowed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.cli import build_parser, serve_settings
from sparkpair.drafting.orders import DraftOrder, DraftOrders, DraftPolicy, Kind, parse_policy
from sparkpair.errors import UserError
from sparkpair.job import Job, Outbox
from sparkpair.request import GenerationRequest, SamplingParams
from sparkpair.stream import Stream


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("mtp", "0", DraftPolicy(0)),
        ("mtp", "3", DraftPolicy(3)),
        ("mtp", "a", DraftPolicy(3, adaptive=(0.8, 0.9))),
        ("mtp", "a:0.5:0.75", DraftPolicy(3, adaptive=(0.5, 0.75))),
        ("mtp", "c5:0.3", DraftPolicy(5, least=0.3)),
        ("mtp", "auto", DraftPolicy(3, adaptive=(0.8, 0.9))),
        ("dflash2", "0", DraftPolicy(0)),
        ("dflash2", "f7", DraftPolicy(7)),
        ("dflash2", "fa", DraftPolicy(3, adaptive=(0.8, 0.9))),
        ("dflash2", "fc5:0.3", DraftPolicy(5, least=0.3)),
        ("dflash2", "fnc7:0.3", DraftPolicy(7, least=0.3, softening=2.0)),
        ("dflash2", "fnc7:0.3:1.5", DraftPolicy(7, least=0.3, softening=1.5)),
        ("dflash2", "auto", DraftPolicy(5, least=0.3)),
    ],
)
def test_a_form_is_read_as_it_is_written(kind: Kind, text: str, expected: DraftPolicy) -> None:
    assert parse_policy(text, kind) == expected


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("dflash2", "fcost7:noisy", "captured graphs"),
        ("mtp", "fcost7", "captured graphs"),
        ("mtp", "fc5:0.3", "takes no f"),
        ("dflash2", "c5:0.3", "begin with f"),
        ("mtp", "auto:2:8:0.03", "auto takes no figures"),
        ("mtp", "16", "N from 1 to 15"),
        ("mtp", "-1", "expected 0, N"),
        ("mtp", "c0:0.3", "N from 1 to 15"),
        ("mtp", "c5:1.5", "P and LOW to HIGH in 0..1"),
        ("mtp", "c5", "expected 0, N"),
        ("mtp", "nc5:0.3", "expected 0, N"),
        ("mtp", "a:0.9:0.8", "LOW to HIGH"),
        ("dflash2", "fc5:0.3:2", "fncN:P[:B]"),
        ("dflash2", "fnc5:0.3:0", "fncN:P[:B]"),
        ("mtp", "", "expected 0, N"),
    ],
)
def test_any_other_is_refused_with_the_reason(kind: Kind, text: str, reason: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_policy(text, kind)
    assert str(refused.value).startswith(f"--draft-policy {text}: ")
    assert reason in str(refused.value)


@given(st.text("0123456789.:acnfost", max_size=8), st.sampled_from(["mtp", "dflash2"]))
def test_whatever_is_written_is_a_policy_within_bounds_or_refused(text: str, kind: Kind) -> None:
    try:
        policy = parse_policy(text, kind)
    except UserError:
        return
    assert 0 <= policy.count <= 15
    assert 0 <= policy.least <= 1


def test_a_policy_without_a_drafter_is_refused_and_never_needs_none() -> None:
    parser = build_parser()
    with pytest.raises(UserError, match=r"--draft-policy c5:0\.3: there is no drafter; name one with --drafter"):
        serve_settings(parser.parse_args(["serve", "model", "--draft-policy", "c5:0.3"]))
    never = serve_settings(parser.parse_args(["serve", "model", "--drafter", "mtp", "--draft-policy", "0"]))
    assert never.policy() is None
    assert serve_settings(parser.parse_args(["serve", "model", "--drafter", "mtp"])).policy() is not None


async def test_the_adaptive_depth_follows_what_was_accepted_and_each_request_has_its_own() -> None:
    orders = DraftOrders(parse_policy("a:0.7:0.9", "mtp"))
    request = GenerationRequest((1, 2), 50, SamplingParams(temperature=0.0, seed=4))
    first, second = (Stream(Job(request, lambda _: None, Outbox(asyncio.get_running_loop())), slot) for slot in (1, 2))

    def depths() -> list[int]:
        return [orders.order(stream, 15).count for stream in (first, second)]

    assert depths() == [2, 2]
    for _ in range(2):
        orders.settled(1, 2, 0)  # 0.8 -> 0.7 -> 0.61
    assert depths() == [1, 2]
    for _ in range(11):
        orders.settled(1, 1, 1)
    assert depths() == [3, 2]
    assert orders.order(first, 1) == DraftOrder(1, seed=4)
    assert orders.order(first, 0).count == 0
    orders.forget(1)
    assert depths() == [2, 2]
