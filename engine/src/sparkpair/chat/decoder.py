# SPDX-License-Identifier: Apache-2.0
"""One reply's token ids to pieces of text, each in its part of the reply.

The pieces depend on the ids alone, not on how they were grouped into events. This is the only way from ids
to text, so a streamed and an unstreamed reply cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkpair.chat.detokenize import Utf8Stream
from sparkpair.chat.reasoning import THINK_CLOSE, THINK_OPEN, Channel, ThinkSplitter
from sparkpair.chat.stops import StopMatcher
from sparkpair.chat.tokenizer import TextTokenizer


class TextPiece(NamedTuple):
    """Some text of a reply; never empty."""

    channel: Channel
    text: str


class ReplyDecoder:
    """Decodes one reply: UTF-8, think block, markers, stop strings.

    Text of end marks and other control markers is left out. A stop string is looked for in the think block
    and in the answer, each by itself; what precedes the match is kept and everything after it is dropped.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        stop_ids: frozenset[int],
        stops: Sequence[str] = (),
        split_thinking: bool = True,
        inside_thinking: bool = False,
        show_ids: frozenset[int] = frozenset(),
    ) -> None:
        """`split_thinking` False returns everything as content. `show_ids` are control markers to show as
        text all the same.
        """
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._show_ids = show_ids
        markers = tokenizer.marker_ids if split_thinking else {}
        self._splitter = ThinkSplitter(markers.get(THINK_OPEN), markers.get(THINK_CLOSE), inside=inside_thinking)
        self._utf8 = Utf8Stream()
        self._stops = StopMatcher(stops)
        self._channel = self._splitter.channel
        self._at_start_of_answer = split_thinking
        self._ended = False
        self.completion_tokens = 0
        self.token_ids: list[int] = []

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the reply."""
        return self._stops.matched

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the think block, its closing marker included."""
        return self._splitter.reasoning_tokens

    def feed(self, token_ids: Iterable[int]) -> list[TextPiece]:
        """The pieces that are certain after these ids. Ids after the end of the reply are ignored and not
        counted.
        """
        pieces: list[TextPiece] = []
        for token_id in token_ids:
            if self._ended:
                break
            self.completion_tokens += 1
            self.token_ids.append(token_id)
            self._decode(token_id, pieces)
            self._ended = self.matched_stop is not None or token_id in self._stop_ids
        return pieces

    def finish(self) -> list[TextPiece]:
        """What was held back, when no more ids come."""
        pieces: list[TextPiece] = []
        self._ended = True
        self._flush(pieces)
        return pieces

    def _decode(self, token_id: int, pieces: list[TextPiece]) -> None:
        channel = self._splitter.place(token_id)
        if channel is None:
            if self._splitter.channel != self._channel:
                self._flush(pieces)
                self._channel = self._splitter.channel
            return
        if token_id in self._stop_ids or (self._tokenizer.is_control(token_id) and token_id not in self._show_ids):
            return
        self._release(self._utf8.feed(self._tokenizer.token_bytes(token_id)), pieces)

    def _release(self, text: str, pieces: list[TextPiece]) -> None:
        if self._at_start_of_answer and self._channel == "content" and text:
            text = text.lstrip("\n")
            self._at_start_of_answer = not text
        self._append(self._stops.feed(text), pieces)

    def _flush(self, pieces: list[TextPiece]) -> None:
        self._release(self._utf8.flush(), pieces)
        if self.matched_stop is None:
            self._append(self._stops.flush(), pieces)

    def _append(self, text: str, pieces: list[TextPiece]) -> None:
        if not text:
            return
        if pieces and pieces[-1].channel == self._channel:
            text = pieces.pop().text + text
        pieces.append(TextPiece(self._channel, text))
