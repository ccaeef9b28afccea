# SPDX-License-Identifier: Apache-2.0
"""Greedy replies of the twin itself to many cases at once, for judging weights where they were trained.

One pass over all wanted replies tells which the model would have said token by token. The others are gone on with from
the first token where it would have said another, a whole pass over all of them for every further token.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

import torch
from sparkpair.chat.call_block import Function
from sparkpair.chat.decoder import ReplyDecoder
from sparkpair.chat.pieces import CallPiece, text_of
from sparkpair.chat.tool_calls import CallParser

from training.cases import Case, Said
from training.encode import Document, Encoder
from training.packing import Packer, Shape
from training.scores import Result
from training.twin.batch import Batch
from training.twin.model import Twin

MODE = "greedy, twin"

# Row lengths; a longer document has a row of its own length.
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
# Tokens that another reply may have more than the wanted one.
ROOM = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A batch with the numbers of its documents, and the row and first column of each."""

    numbers: list[int]
    batch: Batch
    places: list[tuple[int, int]]


def packed(documents: Sequence[Document], tokens: int, pad_id: int) -> Iterator[Packed]:
    """All documents in batches of so many tokens, each batch of documents of about one length.

    Every batch has the same number of tokens, as what is compiled for a GPU is compiled for a number of rows. Raises
    ValueError for a document that is longer.
    """
    groups: dict[int, list[int]] = {}
    for number, document in enumerate(documents):
        fitting = [length for length in LENGTHS if len(document.ids) <= length and tokens % length == 0]
        groups.setdefault(fitting[0] if fitting else tokens, []).append(number)
    for length, waiting in sorted(groups.items()):
        pictured = max(1, tokens // 2048) if any(documents[number].seen for number in waiting) else 0
        while waiting:
            packer = Packer(Shape(tokens // length, length, pictured), pad_id)
            taken = [number for number in waiting if packer.add(documents[number])]
            if not taken:
                raise ValueError(f"a document of {len(documents[waiting[0]].ids)} tokens does not fit into {tokens}")
            waiting = [number for number in waiting if number not in set(taken)]
            yield Packed(taken, packer.batch(), packer.places)


class Replying:
    """Judges a twin in evaluation mode with the text files of its checkpoint."""

    def __init__(self, twin: Twin, encoder: Encoder, stop_ids: Sequence[int], tokens: int = 32768) -> None:
        """`tokens` of a batch."""
        self._twin = twin
        self._encoder = encoder
        self._stops = list(stop_ids)
        self._tokens = tokens
        self._pad = encoder.tokenizer.marker_ids["<|endoftext|>"]
        self._device = next(twin.parameters()).device

    @torch.no_grad()
    def results(self, cases: Sequence[Case], tries: int) -> list[Result]:
        """A result for each case; of those whose reply is another than wanted, at most `tries` a skill are judged."""
        documents = [self._encoder.document(case) for case in cases]
        begun = self.beginnings(documents)
        results = [Result(case, MODE, None, None) for case in cases]
        tried: dict[str, int] = {}
        further: list[tuple[int, list[int]]] = []
        for number, ids in enumerate(begun):
            case = cases[number]
            if ids is None:
                results[number] = Result(case, MODE, True, case.wanted, doubtful=False)
            elif tried.setdefault(case.skill, 0) < tries:
                tried[case.skill] += 1
                further.append((number, ids))
        replies = self.go_on([(documents[number], ids) for number, ids in further])
        for (number, _), reply in zip(further, replies, strict=True):
            said = self.said(cases[number], reply)
            results[number] = Result(cases[number], MODE, cases[number].judge(said), said)
        return results

    def beginnings(self, documents: list[Document]) -> list[list[int] | None]:
        """The ids of each reply up to the first that is another than wanted, that included; None when none is."""
        found: list[list[int] | None] = [None] * len(documents)
        for part in packed(documents, self._tokens, self._pad):
            batch = part.batch.to(self._device)
            told = self._twin.logits(self._twin(batch).hidden).argmax(-1).cpu()
            for number, (row, start) in zip(part.numbers, part.places, strict=True):
                document = documents[number]
                wanted = document.ids[document.prompt :]
                before = start + document.prompt - 1
                likely = told[row, before : before + len(wanted)].tolist()
                pairs = enumerate(zip(likely, wanted, strict=True))
                wrong = next((at for at, (one, other) in pairs if one != other), None)
                if wrong is not None:
                    found[number] = likely[: wrong + 1]
        return found

    def go_on(self, begun: list[tuple[Document, list[int]]]) -> list[list[int]]:
        """Whole replies from their beginnings, each up to an end mark or as long as there is room."""
        grown = [self._with_room(document, ids) for document, ids in begun]
        replies: list[list[int]] = [[] for _ in begun]
        for part in packed(grown, self._tokens, self._pad):
            lengths = [begun[number][0].prompt + len(begun[number][1]) for number in part.numbers]
            ends = [len(grown[number].ids) for number in part.numbers]
            for number, ids in zip(part.numbers, self._decode(part, lengths, ends), strict=True):
                replies[number] = [*begun[number][1], *ids]
        return replies

    def _with_room(self, document: Document, ids: list[int]) -> Document:
        """The prompt, a reply's beginning, and room for the rest."""
        known = [*document.ids[: document.prompt], *ids]
        room = [self._pad] * (len(document.ids) + ROOM - len(known))
        return dataclasses.replace(document, ids=[*known, *room], weights=[0.0] * (len(known) + len(room)))

    def _decode(self, part: Packed, lengths: list[int], ends: list[int]) -> list[list[int]]:
        """What follows in every document of a batch, of which so many tokens are known, up to its end."""
        batch = part.batch.to(self._device)

        def here(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, device=self._device)

        rows = here([row for row, _ in part.places])
        starts = here([start for _, start in part.places])
        columns, last = starts + here(lengths) - 1, starts + here(ends) - 1
        stops = here(self._stops)
        done = torch.isin(batch.tokens[rows, columns], stops) | (columns >= last)
        while not bool(done.all()):
            told = self._twin.logits(self._twin(batch).hidden[rows, columns]).argmax(-1)
            columns = columns + ~done
            batch.tokens[rows[~done], columns[~done]] = told[~done]
            done = done | torch.isin(told, stops) | (columns >= last)
        tokens = batch.tokens.tolist()
        firsts = (starts + here(lengths)).tolist()
        return [
            tokens[row][first : column + 1]
            for row, first, column in zip(rows.tolist(), firsts, columns.tolist(), strict=True)
        ]

    def said(self, case: Case, ids: list[int]) -> Said:
        """The reply of these ids as the API tells it."""
        functions = [Function(tool["function"]["name"], tool["function"]["parameters"]) for tool in case.tools]
        decoder = ReplyDecoder(
            self._encoder.tokenizer,
            stop_ids=frozenset(self._stops),
            inside_thinking=case.thinking,
            calls=CallParser(functions) if functions else None,
        )
        ended = bool(ids) and ids[-1] in self._stops
        pieces = [*decoder.feed(ids), *decoder.finish(out_of_tokens=not ended)]
        calls = tuple((piece.name, json.loads(piece.arguments)) for piece in pieces if isinstance(piece, CallPiece))
        return Said(text_of(pieces), text_of(pieces, "reasoning"), calls, ended)
