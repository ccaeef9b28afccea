# SPDX-License-Identifier: Apache-2.0
"""Kept prompts: which prompt states are remembered, which of them a prompt resumes, and which go when room is short.

This is rank 0's bookkeeping and knows no tensors: an entry is a name under which every rank holds a state, and the
extent of the pool in which its rows stand. Entries stand on the 64-token grid, or at the end of a whole prompt, where
the logits are kept too so that an identical prompt answers at once. A prompt may resume an entry whose tokens are all
of its own beginning.

An entry that a longer one on the grid continues is *superseded*, unless several different ones have been seen: then it
is a beginning that conversations share. When room is short, superseded entries go first, then the rest, each time the
least recently used. Nothing goes while there is room.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

import numpy
import numpy.typing

from sparkpair.grid import GRID
from sparkpair.request import Logits

Tokens = numpy.typing.NDArray[numpy.int64]


@dataclasses.dataclass(slots=True)
class Entry:
    """A kept state of `tokens`, with its rows in `extent`; `logits` [1, vocab] only at the end of a whole prompt.

    `heir` is the name of the entry that continues this one, 0 for none; `shared` says that there were different ones.
    """

    name: int
    tokens: Tokens
    extent: int
    last_used: int
    logits: Logits | None = None
    heir: int = 0
    shared: bool = False

    @property
    def superseded(self) -> bool:
        """Whether one longer entry stands for this one too."""
        return self.heir != 0 and not self.shared

    @property
    def rows(self) -> int:
        """Rows of the extent that it needs: those of whole blocks. What is behind them it holds itself."""
        return len(self.tokens) // GRID * GRID

    def begins(self, tokens: Tokens) -> bool:
        """Whether `tokens` begin with all of this entry's."""
        return len(self.tokens) <= len(tokens) and bool((tokens[: len(self.tokens)] == self.tokens).all())


def common_length(first: Tokens, second: Tokens) -> int:
    """How many tokens two sequences have in common at their beginning."""
    length = min(len(first), len(second))
    different = numpy.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


class KeptPrompts:
    """The entries, at most `most` of them. `gone` is told of every entry that goes."""

    def __init__(self, most: int, gone: Callable[[Entry], None]) -> None:
        self._most = most
        self._gone = gone
        self._entries: dict[int, Entry] = {}
        self._clock = 0
        self._names = 0

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self._entries)

    @property
    def entries(self) -> Collection[Entry]:
        """All entries, in no particular order."""
        return self._entries.values()

    def within(self, extent: int) -> list[Entry]:
        """The entries whose rows stand in `extent`."""
        return [entry for entry in list(self._entries.values()) if entry.extent == extent]

    def find(self, prompt: Sequence[int]) -> Entry | None:
        """The entry that saves most of `prompt`: its tokens are the prompt's beginning, or all of it with logits."""
        tokens = numpy.asarray(prompt, dtype=numpy.int64)
        usable = [
            entry for entry in self._entries.values() if self._usable(entry, len(tokens)) and entry.begins(tokens)
        ]
        best = max(usable, key=lambda entry: len(entry.tokens), default=None)
        if best is not None:
            self._use(best)
            if best.heir and not self._entries[best.heir].begins(tokens):
                best.shared = True
        return best

    @staticmethod
    def _usable(entry: Entry, length: int) -> bool:
        if len(entry.tokens) == length:
            return entry.logits is not None
        return len(entry.tokens) % GRID == 0

    def _use(self, entry: Entry) -> None:
        self._clock += 1
        entry.last_used = self._clock

    def divergence(self, prompt: Sequence[int]) -> int:
        """The longest beginning on the grid that `prompt` shares with any entry, whether or not it is kept there."""
        tokens = numpy.asarray(prompt, dtype=numpy.int64)
        longest = max((common_length(entry.tokens, tokens) for entry in self._entries.values()), default=0)
        return min(longest, len(tokens) - 1) // GRID * GRID

    def add(self, prompt: Sequence[int], extent: int) -> int:
        """Keep the state of `prompt`, whose rows stand in `extent`: its name, or 0 when it is not kept.

        It is not kept when it is kept already, or when none may be. Decided before anything is copied, so the limit
        holds at every instant.
        """
        tokens = numpy.asarray(prompt, dtype=numpy.int64)
        same = next((entry for entry in self._entries.values() if numpy.array_equal(entry.tokens, tokens)), None)
        if same is not None:
            self._use(same)
            return 0
        if self._most == 0:
            return 0
        self._names += 1
        self._inherit(tokens, self._names)
        while len(self._entries) >= self._most:
            self.drop(self.order()[0])
        entry = Entry(self._names, tokens, extent, 0)
        self._use(entry)
        self._entries[entry.name] = entry
        return entry.name

    def _inherit(self, tokens: Tokens, name: int) -> None:
        """The entries that `tokens` continue have it as their heir, or are shared when they had a different one.

        The end of a prompt inherits nothing where it is off the grid: no longer prompt could resume there.
        """
        if len(tokens) % GRID:
            return
        for entry in self._entries.values():
            if len(entry.tokens) < len(tokens) and entry.begins(tokens):
                if entry.heir and not self._entries[entry.heir].begins(tokens):
                    entry.shared = True
                entry.heir = name

    def order(self) -> list[Entry]:
        """All entries, in the order in which they go."""
        return sorted(self._entries.values(), key=lambda entry: (not entry.superseded, entry.last_used))

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        del self._entries[entry.name]
        for other in self._entries.values():
            if other.heir == entry.name:
                other.heir = 0
        self._gone(entry)

    def complete(self, name: int, logits: Logits) -> None:
        """The logits [1, vocab] at the end of the whole prompt that `name` keeps; nothing where it is not kept."""
        if name in self._entries:
            self._entries[name].logits = logits.copy()
