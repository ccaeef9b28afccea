# SPDX-License-Identifier: Apache-2.0
"""Calls of functions in a reply: told whole once they are certain, everything else passed on as text.

A call inside the think block is one only if the reply ends on it: nothing but blanks and the end of the think block may
follow. Until that is known its text is held back; if anything else follows, it was reasoning. What becomes of a block
that the end of the reply leaves open depends on why the reply ended: a model that ended its turn may leave out the
closing tag, a reply that was cut off gives no call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sparkpair.chat.call_block import OPEN, CallBlock, Function, Offer, ToolCall
from sparkpair.chat.pieces import TextPiece
from sparkpair.chat.reasoning import Channel

Ending = Literal["turn", "stop", "limit"]
"""Why a reply ended: by an end mark, at a stop string, or because its tokens were used up."""

Output = TextPiece | ToolCall


class CallParser:
    """Reads one reply. What comes out depends on the reply alone, not on where its text was cut into pieces."""

    def __init__(self, functions: Sequence[Function], *, parallel: bool = True) -> None:
        """`parallel` False: only the first call is told, further ones are left out."""
        self._offer = Offer(functions)
        self._parallel = parallel
        self._channel: Channel | None = None
        self._block: CallBlock | None = None
        self._undecided: list[TextPiece] = []
        self._undecided_calls: list[ToolCall] = []
        self._told = 0
        # Blanks between the start of the answer, calls and its end are no answer; they wait for what follows them.
        self._blank = ""
        self._only_blank = True
        self.cut = False
        """Whether the reply's tokens were used up inside a call, which is then left out."""

    @property
    def writing(self) -> bool:
        """Whether text is held back because it is, or may be, a call."""
        return self._block is not None or bool(self._undecided_calls)

    def text(self, channel: Channel, text: str) -> list[Output]:
        """Read ordinary text."""
        out: list[Output] = []
        self._enter(channel, out)
        if self._block is None:
            self._plain(text, out)
        else:
            self._block.text(text)
            if self._block.broken:
                self._give_up(out)
        return out

    def marker(self, channel: Channel, marker: str) -> list[Output]:
        """Read one of the CALL_MARKERS."""
        out: list[Output] = []
        self._enter(channel, out)
        if marker == OPEN:
            self._close(out)
            if channel == "content":
                self._decide_reasoning(out)
            self._block = CallBlock(self._offer)
        elif self._block is None:
            self._plain(marker, out)
        else:
            call = self._block.marker(marker)
            if call is not None:
                self._accept(call, out)
            elif self._block.broken:
                self._give_up(out)
        return out

    def end(self, ending: Ending) -> list[Output]:
        """What remains when no more comes."""
        out: list[Output] = []
        if ending == "limit" and self._block is not None:
            self.cut = True
            self._block = None
        elif ending == "stop" and self._block is not None:
            self._give_up(out)
        self._close(out)
        if ending == "turn":
            for call in self._undecided_calls:
                self._tell(call, out)
        else:
            self._decide_reasoning(out)
        if not self._told:
            self._emit("content", self._blank, out)
        return out

    def _enter(self, channel: Channel, out: list[Output]) -> None:
        """A think block that ends inside a call ends the call too."""
        if self._channel != channel:
            self._close(out)
            self._channel = channel

    def _close(self, out: list[Output]) -> None:
        """The open block is not continued: it is a call without its closing tag, or text."""
        if self._block is None:
            return
        call = self._block.close()
        if call is None:
            self._give_up(out)
        else:
            self._accept(call, out)

    def _give_up(self, out: list[Output]) -> None:
        assert self._block is not None
        raw, self._block = self._block.raw, None
        self._plain(raw, out)

    def _accept(self, call: ToolCall, out: list[Output]) -> None:
        assert self._block is not None
        raw, self._block = self._block.raw, None
        if self._channel == "reasoning":
            self._undecided.append(TextPiece("reasoning", raw))
            self._undecided_calls.append(call)
        else:
            self._tell(call, out)

    def _tell(self, call: ToolCall, out: list[Output]) -> None:
        if self._parallel or not self._told:
            out.append(call)
            self._told += 1
        self._blank = ""
        self._only_blank = True

    def _plain(self, text: str, out: list[Output]) -> None:
        channel: Channel = self._channel or "content"
        if self._undecided_calls:
            if text.isspace():
                self._undecided.append(TextPiece(channel, text))
                return
            self._decide_reasoning(out)
        if channel == "content" and self._only_blank:
            self._blank += text
            if not self._blank.isspace():
                text, self._blank, self._only_blank = self._blank, "", False
                self._emit(channel, text, out)
        else:
            self._emit(channel, text, out)

    def _decide_reasoning(self, out: list[Output]) -> None:
        """Something followed the calls of the think block: they were reasoning."""
        held, self._undecided = self._undecided, []
        self._undecided_calls = []
        for channel, text in held:
            if channel == "content":
                self._blank += text
            else:
                self._emit(channel, text, out)

    def _emit(self, channel: Channel, text: str, out: list[Output]) -> None:
        if not text:
            return
        last = out[-1] if out else None
        if isinstance(last, TextPiece) and last.channel == channel:
            text = out.pop()[1] + text
        out.append(TextPiece(channel, text))
