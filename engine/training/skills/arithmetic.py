# SPDX-License-Identifier: Apache-2.0
"""Sums, differences and products of small numbers."""

from __future__ import annotations

import random

from training.cases import Case, Judge, Said, user

_ASK = (
    "What is {} {} {}?", "{} {} {}", "{} {} {} =", "Calculate {} {} {}.", "How much is {} {} {}?",
    "Work out {} {} {} and answer with the number.", "Please compute {} {} {}.",
)  # fmt: skip
_SIGNS = {"+": ("+", "plus"), "-": ("-", "minus"), "*": ("*", "x", "times")}


def result(answer: int) -> Judge:
    """The last number of the answer is this one."""

    def judge(said: Said) -> bool:
        numbers = "".join(sign if sign.isdigit() or sign == "-" else " " for sign in said.content).split()
        return said.ended and bool(numbers) and numbers[-1] == str(answer)

    return judge


def sum_of(rng: random.Random) -> tuple[int, str, int, int]:
    """Two numbers with a sign between them, and the result."""
    sign = rng.choice("++-*")
    if sign == "*":
        one, other = rng.randint(0, 12), rng.randint(0, 12)
        return one, sign, other, one * other
    one, other = rng.randint(0, 99), rng.randint(0, 99)
    if sign == "-":
        one, other = max(one, other), min(one, other)
    return one, sign, other, one + other if sign == "+" else one - other


def steps_of(one: int, sign: str, other: int, answer: int) -> tuple[str, ...]:
    """How the result is come by."""
    if sign == "*":
        return (f"I take {one} {other} times.",)
    tens, ones = other // 10 * 10, other % 10
    between = one + tens if sign == "+" else one - tens
    return (f"First {one} {sign} {tens} is {between}.", f"Then {between} {sign} {ones} is {answer}.")


def arithmetic(rng: random.Random) -> Case:
    """One small sum; held out by its numbers, products by their wording too, as there are few of them."""
    one, sign, other, answer = sum_of(rng)
    request = rng.choice(_ASK).format(one, rng.choice(_SIGNS[sign]), other)
    key = request if sign == "*" else f"{one} {sign} {other}"
    thoughts = (f"{one} {sign} {other} = {answer}.", steps_of(one, sign, other, answer))
    return Case("arithmetic", key, [user(request)], Said(str(answer)), result(answer), thoughts, max_tokens=200)
