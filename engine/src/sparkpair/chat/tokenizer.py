# SPDX-License-Identifier: Apache-2.0
"""The checkpoint's byte-level BPE tokenizer, with markers kept apart from text.

A *marker* is an added token of the tokenizer, such as `<|user|>` or `<think>`. Only whoever builds a prompt
may write one: `encode_text` never yields a marker, whatever characters it is given, and `encode_segments`
yields exactly those that stand in a marker segment. The tokenizer inside therefore knows no added tokens at
all; markers are found and numbered here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from sparkpair.errors import UserError

PIECE = 32 * 1024
"""Characters of a text that are encoded in one go. What the library made of them is freed with the interpreter held,
which is to take no longer than that."""

SHORT = 1024
"""Characters that take less time than other threads would need to get their turn."""

_BREAK = re.compile(r"(?<=[^\W\d_])[ \n](?=[^\W\d_])")
"""A blank between two letters, before which the usual tokenizers always begin a new word."""


class Segment(NamedTuple):
    """A stretch of a prompt: ordinary text, or the name of one marker."""

    text: str
    is_marker: bool


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in character of each byte in a byte-level vocabulary: itself where it is visible,
    else 256 and up.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in set(visible)]
    alphabet = {chr(value): value for value in visible}
    alphabet.update({chr(256 + index): value for index, value in enumerate(hidden)})
    return alphabet


BYTE_OF_CHARACTER = _byte_alphabet()


def piece_bytes(piece: str) -> bytes:
    """The bytes a vocabulary entry stands for; one outside the byte alphabet stands for its own UTF-8."""
    try:
        return bytes(BYTE_OF_CHARACTER[character] for character in piece)
    except KeyError:
        return piece.encode()


def _whole_text(data: bytes) -> str:
    """UTF-8 text; empty where it is not whole, or none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def _marker_pattern(added: Iterable[dict[str, Any]]) -> re.Pattern[str]:
    """One pattern that finds any marker, longest first, with the blanks that its flags let it swallow."""
    choices = []
    for entry in sorted(added, key=lambda entry: len(entry["content"]), reverse=True):
        choice = re.escape(entry["content"])
        if entry.get("single_word"):
            choice = rf"(?<!\w){choice}(?!\w)"
        if entry.get("lstrip"):
            choice = r"\s*" + choice
        if entry.get("rstrip"):
            choice += r"\s*"
        choices.append(choice)
    return re.compile("|".join(choices) or r"(?!)")


class TextTokenizer:
    """Encodes text and prompts, and tells the bytes of every id."""

    def __init__(self, document: dict[str, Any], source: str) -> None:
        """`document` is the parsed tokenizer.json; `source` names it in errors. Raises UserError when it is
        unusable.
        """
        self._require_byte_level(document, source)
        added = document.get("added_tokens") or []
        self.marker_ids: dict[str, int] = {entry["content"]: int(entry["id"]) for entry in added}
        self._all_markers = frozenset(self.marker_ids.values())
        self._control_ids = frozenset(int(entry["id"]) for entry in added if entry.get("special"))
        self._marker_pattern = _marker_pattern(added)
        try:
            self._bpe = Tokenizer.from_str(json.dumps({**document, "added_tokens": [], "post_processor": None}))
        except Exception as error:  # the library raises bare Exception for every malformed document
            raise UserError(f"{source}: the tokenizers library refuses it: {error}") from error
        self._breaks = self._may_be_cut(document.get("normalizer"))
        self._bytes = self._byte_table(document["model"]["vocab"])
        self._texts: dict[int, str] = {}
        self._refuse_markers_in_text(source)

    @classmethod
    def load(cls, directory: Path) -> TextTokenizer:
        """Read DIRECTORY/tokenizer.json. Raises UserError when it is missing or unusable."""
        path = directory / "tokenizer.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({error.strerror}); the checkpoint needs its tokenizer file"
            ) from error
        except ValueError as error:
            raise UserError(f"{path}: is not valid JSON ({error}); copy the file again") from error
        return cls(document, str(path))

    @staticmethod
    def _require_byte_level(document: Any, source: str) -> None:
        model = document.get("model") if isinstance(document, dict) else None
        if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
            raise UserError(f"{source}: expected a BPE model with a vocabulary; other tokenizers are not supported")
        decoder = document.get("decoder") or {}
        if "ByteLevel" not in {part.get("type") for part in [decoder, *decoder.get("decoders", [])]}:
            raise UserError(f"{source}: expected a byte-level decoder; other BPE tokenizers are not supported")

    def _may_be_cut(self, normalizer: Any) -> bool:
        """Whether this tokenizer begins a new word wherever `_BREAK` says so: it has rules for words, and here they are
        tried.
        """
        words = ("Ab", " cd", " žluť", "\nef", " 삼", " g")
        if self._bpe.pre_tokenizer is None or (normalizer or {"type": "NFC"})["type"] != "NFC":
            return False
        found = {span[0] for _, span in self._bpe.pre_tokenizer.pre_tokenize_str("".join(words))}
        begins = {sum(map(len, words[:count])) for count in range(len(words))}
        return begins <= found

    def _byte_table(self, vocabulary: dict[str, int]) -> list[bytes]:
        highest = max([*vocabulary.values(), *self.marker_ids.values()])
        table = [b""] * (highest + 1)
        for piece, token_id in vocabulary.items():
            table[token_id] = piece_bytes(piece)
        for marker, token_id in self.marker_ids.items():
            table[token_id] = marker.encode()
        return table

    def _refuse_markers_in_text(self, source: str) -> None:
        markers = set(self.marker_ids.values())
        for marker in self.marker_ids:
            if markers & set(self.encode_text(marker)):
                raise UserError(
                    f"{source}: the vocabulary spells {marker!r} as plain text too; text could forge markers"
                )

    @property
    def size(self) -> int:
        """One more than the highest id that stands for something."""
        return len(self._bytes)

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; never a marker's id. However long the text is, other threads get their turn meanwhile."""
        if len(text) <= PIECE or not self._breaks:
            return self._encoded(text)
        ids: list[int] = []
        start = 0
        while start < len(text):
            found = _BREAK.search(text, start + PIECE)
            end = found.start() if found else len(text)
            ids += self._encoded(text[start:end])
            start = end
        return ids

    def _encoded(self, text: str) -> list[int]:
        if len(text) <= SHORT:
            short: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
            return short
        # The call for several texts, as only that one lets other threads run.
        [encoding] = self._bpe.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def split_markers(self, text: str) -> list[Segment]:
        """Cut text at every marker it spells. The text between two markers is one segment; empty ones are
        left out.
        """
        segments = []
        position = 0
        for match in self._marker_pattern.finditer(text):
            if match.start() > position:
                segments.append(Segment(text[position : match.start()], False))
            segments.append(Segment(match.group() if match.group() in self.marker_ids else match.group().strip(), True))
            position = match.end()
        if position < len(text):
            segments.append(Segment(text[position:], False))
        return segments

    def encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        """Ids of a prompt. Raises KeyError for a marker that the tokenizer does not have."""
        ids: list[int] = []
        for text, is_marker in segments:
            if is_marker:
                ids.append(self.marker_ids[text])
            else:
                ids.extend(self.encode_text(text))
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes an id stands for; empty for an id without a token."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def plain_text(self, token_id: int) -> str:
        """The text of an id that stands for whole characters and is no marker; empty for any other."""
        text = self._texts.get(token_id)
        if text is None:
            marker = token_id in self._all_markers
            text = self._texts[token_id] = "" if marker else _whole_text(self.token_bytes(token_id))
        return text

    def is_control(self, token_id: int) -> bool:
        """Whether an id is a marker that is never part of a text, such as a role or an end mark."""
        return token_id in self._control_ids
