# SPDX-License-Identifier: Apache-2.0
"""What `sparkpair bench` is asked to measure; imports nothing that takes time."""

from __future__ import annotations

import dataclasses

from sparkpair.errors import UserError

KINDS = ("structured", "prose")
MODES = ("decode", "prefill", "reuse", "fill")
MOST_STREAMS = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. `words` are sizes of long prompts in words, about a token each; `repeats` of decode waves."""

    modes: tuple[str, ...] = MODES
    kinds: tuple[str, ...] = KINDS
    streams: tuple[int, ...] = (1, 2, 4)
    tokens: int = 512
    words: tuple[int, ...] = (2048, 8192)
    repeats: int = 1

    def check(self) -> None:
        """Raise UserError naming the flag that is wrong."""
        for flag, given, allowed in (("--modes", self.modes, MODES), ("--kinds", self.kinds, KINDS)):
            unknown = [name for name in given if name not in allowed]
            if unknown or not given:
                raise UserError(f"{flag} {','.join(given)}: expected some of {', '.join(allowed)}")
        for flag, numbers, least, most in (
            ("--streams", self.streams, 1, MOST_STREAMS),
            ("--tokens", (self.tokens,), 2, 100_000),
            ("--words", self.words, 1, 2_000_000),
            ("--repeats", (self.repeats,), 1, 100),
        ):
            if not numbers or not all(least <= number <= most for number in numbers):
                raise UserError(f"{flag} {','.join(map(str, numbers))}: each between {least} and {most}")
