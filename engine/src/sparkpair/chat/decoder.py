# SPDX-License-Identifier: Apache-2.0
"""One reply's token ids to pieces of text, each in its part of the reply, and to whole calls of functions.

The pieces depend on the ids alone, not on how they were grouped into events. This is the only way from ids
to text, so a streamed and an unstreamed reply cannot differ.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from sparkpair.chat.call_block import CALL_MARKERS
from sparkpair.chat.detokenize import Utf8Stream
from sparkpair.chat.marks import MarkedText
from sparkpair.chat.pieces import CallPiece, Piece, TextPiece
from sparkpair.chat.reasoning import THINK_CLOSE, THINK_OPEN, Channel, ThinkSplitter
from sparkpair.chat.stops import StopMatcher
from sparkpair.chat.tokenizer import TextTokenizer
from sparkpair.chat.tool_calls import CallParser, Ending, Output


class ReplyDecoder:
    """Decodes one reply: UTF-8, think block, markers, stop strings, calls.

    Text of end marks and other control markers is left out. A stop string is looked for in the think block
    and in the answer, each by itself, call markup included; what precedes the match is kept and everything after it is
    dropped.
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
        calls: CallParser | None = None,
        verbatim: bool = False,
    ) -> None:
        """`split_thinking` False returns everything as content. `show_ids` are control markers to show as
        text all the same. Without `calls`, call markup is text. Line breaks before an answer are dropped, unless it
        is `verbatim`.
        """
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._show_ids = show_ids
        markers = tokenizer.marker_ids if split_thinking else {}
        self._splitter = ThinkSplitter(markers.get(THINK_OPEN), markers.get(THINK_CLOSE), inside=inside_thinking)
        self._utf8 = Utf8Stream()
        self._stops = StopMatcher(stops)
        # Without stop strings nothing holds text back but an unfinished character.
        self._may_hurry = not stops
        self._channel = self._splitter.channel
        self._at_start_of_answer = split_thinking and not verbatim
        self._ended = False
        self._calls = calls
        self._call_markers = {} if calls is None else {markers[name]: name for name in CALL_MARKERS if name in markers}
        self._marked = MarkedText()
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

    @property
    def writing_call(self) -> bool:
        """Whether text is held back because it is, or may be, a call."""
        return self._calls is not None and self._calls.writing and not self._ended

    @property
    def cut_call(self) -> bool:
        """Whether the reply's tokens were used up inside a call."""
        return self._calls is not None and self._calls.cut

    def feed(self, token_ids: Iterable[int]) -> list[Piece]:
        """The pieces that are certain after these ids. Ids after the end of the reply are ignored and not
        counted.
        """
        pieces: list[Piece] = []
        for token_id in token_ids:
            if self._ended:
                break
            self.completion_tokens += 1
            self.token_ids.append(token_id)
            if token_id in self._stop_ids or not self._hurry(token_id, pieces):
                self._decode(token_id, pieces)
            self._ended = self.matched_stop is not None or token_id in self._stop_ids
        return pieces

    def finish(self, *, out_of_tokens: bool) -> list[Piece]:
        """What was held back, when no more ids come; `out_of_tokens`: because the reply may not have more."""
        pieces: list[Piece] = []
        self._ended = True
        self._flush(pieces)
        if self._calls is not None:
            ending: Ending = "limit" if out_of_tokens else "turn"
            self._append(self._calls.end("stop" if self.matched_stop is not None else ending), pieces)
        return pieces

    def _hurry(self, token_id: int, pieces: list[Piece]) -> bool:
        """Do what `_decode` would in the commonest case, in a fraction of its time; False: this is another case."""
        if not self._may_hurry or not self._utf8.whole or (self._at_start_of_answer and self._channel == "content"):
            return False
        text = self._tokenizer.plain_text(token_id)
        if not text:
            return False
        self._splitter.place(token_id)
        self._say(self._channel, text, pieces)
        return True

    def _decode(self, token_id: int, pieces: list[Piece]) -> None:
        channel = self._splitter.place(token_id)
        if channel is None:
            if self._splitter.channel != self._channel:
                self._flush(pieces)
                self._channel = self._splitter.channel
            return
        if marker := self._call_markers.get(token_id):
            self._release(self._utf8.feed(marker.encode()), pieces, marker)
        elif token_id in self._show_ids or not (token_id in self._stop_ids or self._tokenizer.is_control(token_id)):
            self._release(self._utf8.feed(self._tokenizer.token_bytes(token_id)), pieces)

    def _release(self, text: str, pieces: list[Piece], marker: str | None = None) -> None:
        if self._at_start_of_answer and self._channel == "content" and text:
            text = text.lstrip("\n")
            self._at_start_of_answer = not text
        self._marked.fed(text, marker)
        self._pass_on(self._stops.feed(text), pieces)

    def _flush(self, pieces: list[Piece]) -> None:
        self._release(self._utf8.flush(), pieces)
        if self.matched_stop is None:
            self._pass_on(self._stops.flush(), pieces)
        self._say(self._channel, self._marked.rest(), pieces)

    def _pass_on(self, text: str, pieces: list[Piece]) -> None:
        for part, is_marker in self._marked.released(text):
            if is_marker and self._calls is not None:
                self._append(self._calls.marker(self._channel, part), pieces)
            else:
                self._say(self._channel, part, pieces)

    def _say(self, channel: Channel, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        self._append([TextPiece(channel, text)] if self._calls is None else self._calls.text(channel, text), pieces)

    @staticmethod
    def _append(outputs: Iterable[Output], pieces: list[Piece]) -> None:
        for output in outputs:
            if not isinstance(output, TextPiece):
                pieces.append(CallPiece(f"call_{secrets.token_hex(12)}", output.name, output.arguments))
                continue
            last = pieces[-1] if pieces else None
            if isinstance(last, TextPiece) and last.channel == output.channel:
                pieces[-1] = TextPiece(output.channel, last.text + output.text)
            else:
                pieces.append(output)
