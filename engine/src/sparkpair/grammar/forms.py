# SPDX-License-Identifier: Apache-2.0
"""The only module that knows xgrammar: compiles forms for a checkpoint's vocabulary and matches replies to them.

The vocabulary is given as bytes, with nothing for markers and unused ids, so that a form can never ask for a marker.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence

import numpy
import numpy.typing
import xgrammar

from sparkpair.chat.checkpoint import CheckpointText
from sparkpair.grammar.form import FormRefused, Kind, choice_grammar
from sparkpair.request import Logits

MOST_BLANKS = 32
"""Blank characters between two parts of a JSON text."""

MOST_THREADS = 8
FIRST_S = 0.25
EACH_S = 0.01
"""How long following a form may take of the engine's thread: at first, and for every token more."""

Flags = numpy.typing.NDArray[numpy.bool_]

_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
"""Line breaks excepted, which the compiler keeps apart."""

_WHERE = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+:\d+: ")
_CHECK = re.compile(r"^Check failed: \(.*?\) is false: ", re.DOTALL)
LONGEST_REASON = 300


class FormFailed(Exception):
    """A reply cannot be followed any further. The message is fit for a client."""


class Compiled:
    """Implements request.Constraint: a form, ready to be followed by any number of replies."""

    def __init__(self, grammar: xgrammar.CompiledGrammar, may: Flags, ends: Sequence[int] | None = None) -> None:
        """`may` [vocab] are the ids that may come at all. `ends` are the ids that may stand behind the whole form and
        leave the reply free; None: the end ids.
        """
        self._grammar = grammar
        self._may = may
        self._ends = ends

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return int(self._grammar.memory_size_bytes)

    def ending_with(self, ends: Sequence[int]) -> Compiled:
        """The same form with other ids behind it."""
        return Compiled(self._grammar, self._may, ends)

    def matcher(self) -> FormMatcher:
        """See request.Constraint."""
        ends = None if self._ends is None else list(self._ends)
        return FormMatcher(xgrammar.GrammarMatcher(self._grammar, override_stop_tokens=ends), self._may)


class FormMatcher:
    """Implements request.Matcher. Raises FormFailed when the form has come to a dead end or takes too long."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, may: Flags) -> None:
        self._matcher = matcher
        self._may = may
        self._bits = numpy.zeros((1, (len(may) + 31) // 32), numpy.int32)
        self._tokens = 0
        self._spent_s = 0.0

    def mask(self, logits: Logits) -> Logits:
        """See request.Matcher."""
        if self._matcher.is_terminated():
            return logits
        started = time.thread_time()
        needed = self._matcher.fill_next_token_bitmask(self._bits)
        self._count(started)
        allowed = self._may
        if needed:
            bits = numpy.unpackbits(self._bits[0].view(numpy.uint8), count=len(allowed), bitorder="little")
            allowed = allowed & bits.view(numpy.bool_)
        if not allowed.any():
            raise FormFailed("the form that was asked for allows no way to go on here")
        if len(allowed) < len(logits):
            allowed = numpy.concatenate([allowed, numpy.zeros(len(logits) - len(allowed), numpy.bool_)])
        masked: Logits = numpy.where(allowed, logits, numpy.float32(-numpy.inf))
        return masked

    def accept(self, token: int) -> int:
        """See request.Matcher."""
        if not self._matcher.is_terminated():
            started = time.thread_time()
            if not self._matcher.accept_token(token):
                raise FormFailed(f"token {token} is not what the form that was asked for allows")
            self._tokens += 1
            self._count(started)
        return token

    def drafts(self, proposed: Sequence[int], most: int) -> list[int]:
        """See request.Matcher."""
        if self._matcher.is_terminated():
            return list(proposed)
        started = time.thread_time()
        taken = 0
        while taken < len(proposed) and not self._matcher.is_terminated():
            if not self._matcher.accept_token(proposed[taken]):
                break
            taken += 1
        if taken:
            self._matcher.rollback(taken)
        self._count(started)
        return list(proposed[:taken])

    def _count(self, started: float) -> None:
        self._spent_s += time.thread_time() - started
        if self._spent_s > FIRST_S + EACH_S * self._tokens:
            raise FormFailed("the form that was asked for takes too long to follow; make it simpler")


class Forms:
    """Compiles forms for one checkpoint. Thread-safe: nothing is kept between two."""

    def __init__(self, checkpoint: CheckpointText) -> None:
        tokenizer = checkpoint.tokenizer
        markers = set(tokenizer.marker_ids.values())
        ids = range(min(tokenizer.size, checkpoint.vocab_size))
        self.vocab_size = checkpoint.vocab_size
        # The compiler lets control characters stand in the strings of a JSON text, where they are not allowed.
        self._any = numpy.ones(checkpoint.vocab_size, numpy.bool_)
        self._json = self._any.copy()
        self._json[[i for i in ids if i not in markers and _CONTROL.search(tokenizer.token_bytes(i))]] = False
        self._info = xgrammar.TokenizerInfo(
            [b"" if token_id in markers else tokenizer.token_bytes(token_id) for token_id in ids],
            xgrammar.VocabType.RAW,
            vocab_size=checkpoint.vocab_size,
            stop_token_ids=sorted(checkpoint.stop_ids),
        )

    def compile(self, kind: Kind, text: str) -> Compiled:
        """Compile what may be anything but has been tried before. Raises FormRefused."""
        threads = max(1, min(MOST_THREADS, os.cpu_count() or 1))
        compiler = xgrammar.GrammarCompiler(self._info, max_threads=threads, cache_enabled=False)
        try:
            if kind == "json_schema":
                return Compiled(compiler.compile_json_schema(text, max_whitespace_cnt=MOST_BLANKS), self._json)
            if kind == "regex":
                return Compiled(compiler.compile_regex(text), self._any)
            rules = choice_grammar(json.loads(text)) if kind == "choice" else text
            return Compiled(compiler.compile_grammar(rules), self._any)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise FormRefused(_reason(error)) from None


def _reason(error: Exception) -> str:
    """What xgrammar says, without where in its sources it says it."""
    text = _CHECK.sub("", _WHERE.sub("", str(error).strip())).strip()
    return text[:LONGEST_REASON] or type(error).__name__
