# SPDX-License-Identifier: Apache-2.0
"""JSON in windows: for any text, however it is cut, what the library would read, or a refusal."""

from __future__ import annotations

import json
import tracemalloc
from collections import deque
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sparkpair.api import json_reader
from sparkpair.api.json_reader import BadJson, read_json

PIECES = ('a\\"b', "\\", '"', "삼👋", "},", "],", '",', "\n\t", "x" * 40, "😀" * 9)
TEXTS = st.one_of(st.text(), st.sampled_from(PIECES))
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), TEXTS
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=12), st.dictionaries(TEXTS, inner, max_size=5)),
    max_leaves=40,
)
LAYOUTS = st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 2])})


def cut(raw: bytes, size: int) -> deque[bytes]:
    return deque(raw[start : start + size] for start in range(0, len(raw), size))


def in_windows(parts: deque[bytes], window: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reader, "WINDOW", window)
        patch.setattr(json_reader, "PAUSE_S", 0)
        return read_json(parts)


# A list longer than a window whose values' end is written with two signs, none of which is in sight.
@example(value=[{"\x1f𐀀": None}, [None] * 3, [None] * 4], layout={"ensure_ascii": True, "indent": 2}, window=40, size=1)
@given(value=VALUES, layout=LAYOUTS, window=st.integers(40, 90), size=st.integers(1, 50))
@settings(deadline=None)
def test_what_was_written_is_read_again(value: Any, layout: dict[str, Any], window: int, size: int) -> None:
    raw = json.dumps(value, **layout).encode()
    assert in_windows(cut(raw, size), window) == value


def refuse(name: str) -> NoReturn:
    raise ValueError(name)


def strictly(raw: bytes) -> Any:
    """What the library reads, under the rules of this server."""
    value = json.loads(raw.decode(), parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()
    return value


SIGNS = '[]{},:"\\ue1-. \n\x01tfnNI' + "dD8c"


@given(
    text=st.one_of(
        st.text(SIGNS),
        st.builds(
            lambda value, at, sign: (text := json.dumps(value))[: (place := at % len(text))] + sign + text[place + 1 :],
            VALUES,
            st.integers(0, 10**6),
            st.text(SIGNS, max_size=2),
        ),
    ),
    window=st.integers(40, 90),
)
@settings(deadline=None)
def test_whatever_the_text_the_library_agrees(text: str, window: int) -> None:
    try:
        wanted = strictly(text.encode())
    except ValueError:
        with pytest.raises(BadJson):
            in_windows(deque([text.encode()]), window)
    else:
        assert in_windows(deque([text.encode()]), window) == wanted


REFUSED = {
    "constant": (b'{"a":NaN}', "NaN is not a JSON number"),
    "constant far in": (b"[" + b"0," * 200_000 + b"-Infinity]", "-Infinity is not a JSON number"),
    "half a pair": (b'["' + b"x" * 100_000 + b'\\ud800"]', "half of a surrogate pair"),
    "half a pair in a text of several windows": (b'["' + b"x" * 400_000 + b'\\ud800"]', "half of a surrogate pair"),
    "halves that are no pair": (b'["\\ude00\\ud83d"]', "half of a surrogate pair"),
    "half a pair as a name": (b'{"' + b"x" * 100_000 + b'\\udfff":1}', "half of a surrogate pair"),
    "not utf-8": (b'["' + b"x" * 100_000 + b'\xff"]', "is not UTF-8: invalid start byte near byte 100002"),
    "cut within a character": (b'["' + b"x" * 100_000 + "삼".encode()[:2], "is not UTF-8"),
    "place of an error": (b"[" + b"1234567, " * 50_000 + b"oops]", "expected a value at character 450001"),
    "no end": (b'["' + b"x" * 100_000, "expected the end of a text"),
    "control character": (b'["' + b"x" * 100_000 + b"\n" + b"x" * 9 + b'"]', "control characters"),
    "nested": (b"[" * 1_000_000, "nested too deeply"),
    "nested objects": (b'{"a":' * 200_000, "nested too deeply"),
    "long number": (b"[" + b"9" * 200_000 + b"]", "is not valid JSON"),
    "nothing": (b"  \n ", "expected a value"),
    "more": (b"{} {}", "expected nothing more at character 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_is_wrong(name: str) -> None:
    raw, reason = REFUSED[name]
    with pytest.raises(BadJson, match=reason):
        read_json(cut(raw, 200_000))


def test_values_are_counted_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "MOST_VALUES", 50_000)
    for many in (b"[" + b"[]," * 30_000 + b"0]", b'{"a":[' + b'{"b":{}},' * 30_000 + b"0]}"):
        assert len(many) > json_reader.WINDOW
        with pytest.raises(BadJson, match="has more than 50000 values"):
            read_json(deque([many]))
    assert len(read_json(deque([b"[" + b"0," * 40_000 + b"0]"]))) == 40_001


LARGE: dict[str, Any] = {
    "text": {"messages": [{"role": "user", "content": [{"text": "A" * 20_000_000}, {"text": "삼\n" * 1_000_000}]}]},
    "ids": {"prompt": list(range(5, 1005)) * 1000},
    "history": {"messages": [{"role": "user", "content": f"Turn {n}, {{}}, []"} for n in range(100_000)]},
}


@pytest.mark.parametrize("name", LARGE)
def test_scanner_is_given_no_more_than_a_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 0

    def noted(read: Any) -> Any:
        def call(text: str, *arguments: Any) -> Any:
            nonlocal longest
            longest = max(longest, len(text))
            return read(text, *arguments)

        return call

    class Decoder:
        scan_once = staticmethod(noted(json_reader._DECODER.scan_once))
        decode = staticmethod(noted(json_reader._DECODER.decode))

    monkeypatch.setattr(json_reader, "_DECODER", Decoder)
    monkeypatch.setattr(json_reader, "scanstring", noted(json_reader.scanstring))
    assert read_json(cut(json.dumps(LARGE[name]).encode(), 256 * 1024)) == LARGE[name]
    assert 0 < longest < 4 * json_reader.WINDOW


def test_other_threads_get_a_turn_for_every_window_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(json_reader.time, "sleep", pauses.append)
    raw = json.dumps(LARGE["ids"]).encode()
    assert read_json(cut(raw, 256 * 1024)) == LARGE["ids"]
    assert len(pauses) >= len(raw) // json_reader.WINDOW
    assert min(pauses) > 0


def test_a_long_text_is_in_memory_once_and_its_bytes_are_given_up() -> None:
    size = 16 * 2**20
    parts = cut(b'["' + b"x" * size + b'"]', 256 * 1024)
    tracemalloc.start()
    try:
        (text,) = read_json(parts)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(text) == size
    assert not parts
    assert most < 1.3 * size
