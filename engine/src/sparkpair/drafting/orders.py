# SPDX-License-Identifier: Apache-2.0
"""How many drafts a round asks of the drafter: the policy, and the orders rank 0 sends to every rank.

| Form | Meaning |
| --- | --- |
| `0` | never; the drafter is not loaded |
| `N` | always N |
| `a[:LOW:HIGH]` | 1 below an acceptance of LOW, 3 from HIGH on, else 2; the average weighs a new round by an eighth |
| `cN:P` | up to N while the product of the drafts' probabilities is at least P |
| `ncN:P[:B]` | the same, where the probability counts the noise of the draw, softened by B |
| `auto` | what is known to do well: `a` for the MTP head, `fc5:0.3` for a block drafter |

For a block drafter each form begins with f (`f7`, `fc5:0.3`, `fnc7:0.3`); the form with noise is for it alone.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from sparkpair.errors import UserError
from sparkpair.stream import Stream

Kind = Literal["mtp", "dflash2"]

MAX_DRAFTS = 15
ADAPTIVE_MOST = 3
ADAPTIVE_START = 0.8
ADAPTIVE_BOUNDS = (0.8, 0.9)
NEW_ROUND = 0.125
NOISE_SOFTENING = 2.0
AUTO = {"mtp": "a", "dflash2": "fc5:0.3"}

_FORMS = "0, N, a[:LOW:HIGH], cN:P or auto with the MTP head; 0, fN, fa, fcN:P, fncN:P[:B] or auto with a block drafter"


@dataclasses.dataclass(frozen=True, slots=True)
class DraftOrder:
    """What every rank does about drafts before one verify window.

    It absorbs the rows that the last window left, then guesses at most `count` tokens after the pending one: the first
    always, a further one while the product of the drafts' probabilities is at least `least`. With a temperature the
    guesses of a block drafter count the noise keyed by `seed`; `softening` is 0 where the probabilities do not.
    """

    count: int
    least: float = 0.0
    softening: float = 0.0
    seed: int = 0
    temperature: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class DraftPolicy:
    """At most `count` drafts a round, cut where their probability falls under `least`; see DraftOrder.

    With `adaptive` bounds the number follows from how many have been accepted.
    """

    count: int
    least: float = 0.0
    softening: float = 0.0
    adaptive: tuple[float, float] | None = None


def parse_policy(text: str, kind: Kind) -> DraftPolicy:
    """The policy of `--draft-policy`. Raises UserError naming the form and what is allowed."""
    form = AUTO[kind] if text == "auto" else text
    if form == "0":
        return DraftPolicy(0)
    if form.startswith("fcost"):
        raise UserError(
            f"--draft-policy {text}: fcost weighs drafts by the measured time of captured graphs, and this engine "
            "captures none; use fcN:P or fncN:P"
        )
    if form.startswith("auto"):
        raise UserError(f"--draft-policy {text}: auto takes no figures here, because it chooses without measuring")
    if form.startswith("f") != (kind == "dflash2"):
        drafter = "a block drafter, whose forms begin with f" if kind == "dflash2" else "the MTP head, which takes no f"
        raise UserError(f"--draft-policy {text}: the drafter is {drafter}. Allowed: {_FORMS}")
    policy = _parse(form.removeprefix("f"), kind)
    if policy is None:
        raise UserError(
            f"--draft-policy {text}: expected {_FORMS}; N from 1 to {MAX_DRAFTS}, P and LOW to HIGH in 0..1"
        )
    return policy


def _parse(form: str, kind: Kind) -> DraftPolicy | None:
    """The policy of a form without its f, or None when it is none."""
    number = r"(\d+(?:\.\d+)?)"
    if fixed := re.fullmatch(r"(\d+)", form):
        policy = DraftPolicy(int(fixed[1]))
    elif adaptive := re.fullmatch(rf"a(?::{number}:{number})?", form):
        low, high = (float(adaptive[1]), float(adaptive[2])) if adaptive[1] else ADAPTIVE_BOUNDS
        policy = DraftPolicy(ADAPTIVE_MOST, adaptive=(low, high))
        if not low <= high <= 1:
            return None
    elif confident := re.fullmatch(rf"(n?)c(\d+):{number}(?::{number})?", form):
        noisy, softening = confident[1] == "n", float(confident[4] or NOISE_SOFTENING)
        if (noisy and (kind == "mtp" or softening == 0)) or (not noisy and confident[4]):
            return None
        policy = DraftPolicy(int(confident[2]), float(confident[3]), softening if noisy else 0.0)
    else:
        return None
    return policy if 1 <= policy.count <= MAX_DRAFTS and policy.least <= 1 else None


class DraftOrders:
    """Rank 0's side: turns the policy into an order for each window of each request."""

    def __init__(self, policy: DraftPolicy) -> None:
        self._policy = policy
        # Share of accepted drafts, by slot; only an adaptive policy asks.
        self._accepted: dict[int, float] = {}

    def order(self, stream: Stream, most: int) -> DraftOrder:
        """The order for the stream's next window, which has room for `most` drafts; 0 where it has others already."""
        policy, sampling = self._policy, stream.job.request.sampling
        return DraftOrder(
            count=min(most, self._depth(stream.slot)),
            least=policy.least,
            softening=policy.softening,
            seed=stream.seed,
            temperature=max(0.0, sampling.temperature),
        )

    def _depth(self, slot: int) -> int:
        if self._policy.adaptive is None:
            return self._policy.count
        low, high = self._policy.adaptive
        share = self._accepted.get(slot, ADAPTIVE_START)
        return 1 + (share >= low) + (share >= high)

    def settled(self, slot: int, drafted: int, accepted: int) -> None:
        """A window's drafts of the drafter have been verified."""
        before = self._accepted.get(slot, ADAPTIVE_START)
        self._accepted[slot] = (1 - NEW_ROUND) * before + NEW_ROUND * accepted / drafted

    def forget(self, slot: int) -> None:
        """The slot's request has ended."""
        self._accepted.pop(slot, None)
