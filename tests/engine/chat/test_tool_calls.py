# SPDX-License-Identifier: Apache-2.0
"""Calls in replies: what is one, what stays text, and that nothing depends on how the text was cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkpair.chat.call_block import CALL_MARKERS, Function
from sparkpair.chat.pieces import TextPiece
from sparkpair.chat.tool_calls import CallParser, Ending

FUNCTIONS = [
    Function("get_weather", {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
    Function("get"),
    Function("ns.tool:v-1"),
]
END = "</think>"
CITY = ("<arg_key>", "city", "</arg_key>", "<arg_value>", "Oslo", "</arg_value>")
DAYS = ("<arg_key>", "days", "</arg_key>", "<arg_value>", "2", "</arg_value>")
WEATHER = ("<tool_call>", "get_weather", *CITY, *DAYS, "</tool_call>")
GET = ("<tool_call>", "get", "</tool_call>")
CALLED = ("get_weather", '{"city":"Oslo","days":2}')
GOT = ("get", "{}")


def parse(
    parts: Iterable[str], ending: Ending = "turn", *, thinking: bool = False, parallel: bool = True, cuts: bool = False
) -> dict[str, Any]:
    """A whole reply: its texts, its calls, and whether a call was cut."""
    parser = CallParser(FUNCTIONS, parallel=parallel)
    out = []
    for part in parts:
        channel: Any = "reasoning" if thinking else "content"
        if part == END:
            thinking = False
        elif part in CALL_MARKERS:
            out += parser.marker(channel, part)
        else:
            for piece in part if cuts else [part]:
                out += parser.text(channel, piece)
    out += parser.end(ending)
    texts = {"content": "", "reasoning": ""}
    for piece in out:
        if isinstance(piece, TextPiece):
            assert piece.text
            texts[piece.channel] += piece.text
    return {**texts, "calls": [tuple(p) for p in out if not isinstance(p, TextPiece)], "cut": parser.cut}


def told(content: str = "", reasoning: str = "", calls: Sequence[Any] = (), cut: bool = False) -> dict[str, Any]:
    return {"content": content, "reasoning": reasoning, "calls": list(calls), "cut": cut}


WHOLE: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "one": (WEATHER, told(calls=[CALLED])),
    "two": ((*WEATHER, *GET), told(calls=[CALLED, GOT])),
    "blanks between": (("\n", *WEATHER, "\n\n", *GET, " "), told(calls=[CALLED, GOT])),
    "text around": (("Let me see.\n", *GET, "\nDone."), told("Let me see.\n\nDone.", calls=[GOT])),
    "blanks inside": (
        ("<tool_call>", "\nget_weather\n", *CITY, "\n", *DAYS, "\n", "</tool_call>"),
        told(calls=[CALLED]),
    ),
    "other case": (("<tool_call>", "Get_Weather", *DAYS, "</tool_call>"), told(calls=[("get_weather", '{"days":2}')])),
    "odd name": (("<tool_call>", "ns.tool:v-1", "</tool_call>"), told(calls=[("ns.tool:v-1", "{}")])),
    "key without its opening tag": (
        ("<tool_call>", "get_weather city", *CITY[2:], "\ndays", *DAYS[2:], "</tool_call>"),
        told(calls=[CALLED]),
    ),
    "words between arguments": (
        ("<tool_call>", "get_weather", *CITY, " and ", *DAYS, "</tool_call>"),
        told(calls=[CALLED]),
    ),
    "the format quoted in a value": (
        (
            "<tool_call>",
            "get_weather",
            *CITY[:4],
            "a </arg_value></tool_call><tool_call>",
            "</arg_value>",
            "</tool_call>",
        ),
        told(calls=[("get_weather", '{"city":"a </arg_value></tool_call><tool_call>"}')]),
    ),
    "blanks of a value": (
        ("<tool_call>", "get_weather", *CITY[:4], "\n Oslo ", "</arg_value>", "</tool_call>"),
        told(calls=[("get_weather", '{"city":"\\n Oslo "}')]),
    ),
    "empty value": (
        ("<tool_call>", "get_weather", *CITY[:4], "</arg_value>", "</tool_call>"),
        told(calls=[("get_weather", '{"city":""}')]),
    ),
    "JSON": (
        ("<tool_call>", '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}', "</tool_call>"),
        told(calls=[CALLED]),
    ),
    "JSON in JSON": (("<tool_call>", '{"name": "get", "arguments": "{}"}', "</tool_call>"), told(calls=[GOT])),
    "function markup": (
        (
            "<tool_call>",
            "\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
            "<parameter=days>2</parameter>\n</function>\n",
            "</tool_call>",
        ),
        told(calls=[CALLED]),
    ),
}

TEXT: dict[str, tuple[str, ...]] = {
    "not offered": ("<tool_call>", "rm", *CITY, "</tool_call>"),
    "not offered in JSON": ("<tool_call>", '{"name": "rm", "arguments": {}}', "</tool_call>"),
    "arguments that are no object": ("<tool_call>", '{"name": "get", "arguments": [1]}', "</tool_call>"),
    "tag in prose": ("Write ", "<tool_call>", " before a name, ", "</tool_call>", " after it."),
    "spelt, not marked": ("<tool_call>get</tool_call>",),
    "no name": ("<tool_call>", *CITY, "</tool_call>"),
    "longer name": ("<tool_call>", "get_weather_now", "</tool_call>"),
    "unclosed key": (
        "<tool_call>",
        "get_weather",
        "<arg_key>",
        "city",
        "<arg_value>",
        "Oslo",
        "</arg_value>",
        "</tool_call>",
    ),
    "empty key": ("<tool_call>", "get_weather", "<arg_key>", "</arg_key>", *CITY[3:], "</tool_call>"),
    "unclosed value": ("<tool_call>", "get_weather", *CITY[:5], "</tool_call>"),
    "value outside": ("<tool_call>", "get_weather", *CITY[:3], "Oslo", *CITY[3:], "</tool_call>"),
    "unfinished markup": ("<tool_call>", "<function=get>", "</tool_call>"),
    "closing tags alone": ("a", "</tool_call>", "b", "</arg_value>", "c"),
    "blanks alone": (" \n ",),
    "bare JSON": ('{"name": "get", "arguments": {}}',),
}


@pytest.mark.parametrize(("parts", "expected"), WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("ending", ["turn", "stop", "limit"])
@pytest.mark.parametrize("cuts", [False, True], ids=["whole", "cut up"])
def test_whole_call_is_told_however_the_reply_ends(
    parts: tuple[str, ...], expected: dict[str, Any], ending: Ending, cuts: bool
) -> None:
    assert parse(parts, ending, cuts=cuts) == expected


@pytest.mark.parametrize("parts", TEXT.values(), ids=TEXT)
@pytest.mark.parametrize("cuts", [False, True], ids=["whole", "cut up"])
def test_what_is_no_call_is_text_as_it_was_written(parts: tuple[str, ...], cuts: bool) -> None:
    assert parse(parts, cuts=cuts) == told("".join(parts))
    assert parse((*parts, *GET), cuts=cuts)["calls"] == [GOT], "and a later call is found all the same"


UNCLOSED = ("<tool_call>", "get_weather", *CITY, *DAYS)


def test_call_that_the_model_left_open_is_closed_when_it_is_complete() -> None:
    assert parse(UNCLOSED) == told(calls=[CALLED])
    assert parse((*UNCLOSED, "\n")) == told(calls=[CALLED])
    assert parse((*UNCLOSED, *GET)) == told(calls=[CALLED, GOT])
    assert parse(GET[:2]) == told(calls=[GOT])


@pytest.mark.parametrize("length", range(3, 8))
def test_call_that_the_model_left_incomplete_is_text(length: int) -> None:
    """An argument that was never closed must not be executed, with a cut value or without one."""
    assert parse(UNCLOSED[:length]) == told("".join(UNCLOSED[:length]))
    assert parse((*UNCLOSED[:length], *GET)) == told("".join(UNCLOSED[:length]), calls=[GOT])


@pytest.mark.parametrize("length", range(1, len(UNCLOSED) + 1))
def test_call_that_the_limit_cuts_is_neither_sent_nor_shown(length: int) -> None:
    assert parse(("Hm.", *UNCLOSED[:length]), "limit") == told("Hm.", cut=True)
    assert parse((*GET, *UNCLOSED[:length]), "limit") == told(calls=[GOT], cut=True)


@pytest.mark.parametrize("length", range(1, len(UNCLOSED) + 1))
def test_call_that_a_stop_string_cuts_is_text(length: int) -> None:
    assert parse(("Hm.", *UNCLOSED[:length]), "stop") == told("Hm." + "".join(UNCLOSED[:length]))


def test_only_the_first_call_is_told_when_calls_may_not_be_parallel() -> None:
    broken = ("<tool_call>", "rm", "</tool_call>")
    assert parse((*broken, *GET, *WEATHER), parallel=False) == told("".join(broken), calls=[GOT])
    assert parse(("x", *GET, *WEATHER, END), thinking=True, parallel=False) == told(reasoning="x", calls=[GOT])


class TestThinking:
    def test_call_that_ends_the_reply_is_one(self) -> None:
        for tail in [(), ("\n",), ("\n", END), (END,), (END, "\n\n"), ("\n", END, " ")]:
            assert parse(("why ", *WEATHER, *tail), thinking=True) == told(reasoning="why ", calls=[CALLED])
        assert parse(("why", *WEATHER, "\n", *GET, END), thinking=True) == told(reasoning="why", calls=[CALLED, GOT])
        assert parse(("why", *UNCLOSED, END), thinking=True) == told(reasoning="why", calls=[CALLED])

    def test_call_that_anything_follows_was_reasoning(self) -> None:
        raw = "".join(GET)
        assert parse((*GET, " or not", END, "So."), thinking=True) == told("So.", raw + " or not")
        assert parse((*GET, "\n", END, "\n", "So."), thinking=True) == told("\nSo.", raw + "\n")
        assert parse((*GET, END, *WEATHER), thinking=True) == told("", raw, [CALLED])
        assert parse((*GET, "hm", *WEATHER, END), thinking=True) == told("", raw + "hm", [CALLED])

    def test_call_that_is_not_known_to_end_the_reply_is_reasoning(self) -> None:
        for ending in ("limit", "stop"):
            assert parse(GET, ending, thinking=True) == told(reasoning="".join(GET))

    def test_call_that_is_cut_or_broken(self) -> None:
        assert parse(("a", *UNCLOSED[:5]), "limit", thinking=True) == told(reasoning="a", cut=True)
        assert parse(("a", *UNCLOSED[:5], END, "b"), thinking=True) == told("b", "a" + "".join(UNCLOSED[:5]))


def test_a_call_is_being_written_from_its_opening_until_it_is_told() -> None:
    parser = CallParser(FUNCTIONS)
    assert not parser.writing
    parser.marker("content", "<tool_call>")
    parser.text("content", "get")
    assert parser.writing
    assert parser.marker("content", "</tool_call>")
    assert not parser.writing
    for text in (" of course", "o"):
        parser.marker("content", "<tool_call>")
        assert parser.text("content", text), "text that no call begins with is told at once"
        assert not parser.writing


words = st.sampled_from(
    ["get", "get_weather", "city", "2", " ", "\n", "{", "a b", "<function=", '{"name":"get"}', "é</arg_value>"]
)
outputs = st.lists(
    st.one_of(st.sampled_from(CALL_MARKERS), st.sampled_from(CALL_MARKERS), words, st.text(min_size=1, max_size=4)),
    max_size=24,
)


@given(parts=outputs, ending=st.sampled_from(["turn", "stop", "limit"]), before=st.none() | outputs)
def test_no_cut_changes_a_reply_and_nothing_is_lost_or_invented(
    parts: list[str], ending: Ending, before: list[str] | None
) -> None:
    reply = parts if before is None else [*before, END, *parts]
    thinking = before is not None
    whole = parse(reply, ending, thinking=thinking)
    assert parse(reply, ending, thinking=thinking, cuts=True) == whole
    written = "".join(part for part in reply if part != END)
    shown = whole["reasoning"] + whole["content"]
    if not whole["calls"] and not whole["cut"]:
        assert shown == written
    assert len(whole["calls"]) <= reply.count("<tool_call>")
    letters = iter(written)
    assert all(letter in letters for letter in shown), "what is shown was written, in this order"
    for name, arguments in whole["calls"]:
        assert name in [function.name for function in FUNCTIONS]
        assert isinstance(json.loads(arguments), dict)
