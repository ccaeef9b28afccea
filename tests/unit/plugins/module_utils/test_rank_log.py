# SPDX-License-Identifier: Apache-2.0
"""Reading a rank's log and what its lines mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkpair.serving.plugins.module_utils._anchors import parse_anchors
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_log import read_lines

ANCHORS = [
    "startup estimate 0.12 GiB within 20.30 GiB: window 16384 tokens, 1 request at once",
    "loading weights: 1.0 MiB of 27.1 MiB on this rank",
    "loading weights: 13.9 MiB of 27.1 MiB on this rank",
    "rank 1 ready in 3.2 s",
    "serving GLM-5.3-Flash-EXL3 at http://127.0.0.1:8888",
]


def test_only_the_lines_of_this_run_are_read(tmp_path: Path):
    log = tmp_path / "rank.log"
    log.write_text("serving old at http://127.0.0.1:1\n")
    offset = log.stat().st_size
    with log.open("a") as file:
        file.write("new\n")
    assert read_lines(str(log), offset) == ["new"]


def test_a_log_that_was_truncated_is_read_from_its_beginning(tmp_path: Path):
    log = tmp_path / "rank.log"
    log.write_text("new\n")
    assert read_lines(str(log), 1000) == ["new"]


def test_no_log_has_no_lines(tmp_path: Path):
    assert read_lines(str(tmp_path / "none"), 0) == []


def test_of_a_long_log_the_beginning_and_the_end_are_read_in_whole_lines(tmp_path: Path):
    log = tmp_path / "rank.log"
    log.write_text("".join(f"line {number:06d}\n" for number in range(200_000)))
    lines = read_lines(str(log), 0)
    assert lines[0] == "line 000000"
    assert lines[-1] == "line 199999"
    assert len(lines) < 60_000
    assert all(len(line) == 11 for line in lines)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[31mred\x1b[0m\n", ["red"]),
        (b"10 %\r50 %\r100 %\n", ["100 %"]),
        (b"dos\r\n", ["dos"]),
        (b"bad \xff byte\n", ["bad \ufffd byte"]),
        (b"\n\n  \n", []),
        (b"unfinished", ["unfinished"]),
        (b"x" * 600 + b"\n", ["x" * 500 + " ..."]),
        (b"bell\x07\x00\n", ["bell"]),
    ],
    ids=["colour", "drawn over", "carriage return", "encoding", "blank", "unfinished", "long", "control"],
)
def test_lines_are_fit_for_a_terminal(tmp_path: Path, raw, shown):
    log = tmp_path / "rank.log"
    log.write_bytes(raw)
    assert read_lines(str(log), 0) == shown


def test_the_engines_anchors_are_understood():
    assert parse_anchors(ANCHORS) == {
        "estimate_gib": 0.12,
        "budget_gib": 20.3,
        "window_tokens": 16384,
        "parallel": 1,
        "fitting_window_tokens": None,
        "loading": "loading weights: 13.9 MiB of 27.1 MiB on this rank",
        "ready_s": 3.2,
        "served_name": "GLM-5.3-Flash-EXL3",
        "serving_url": "http://127.0.0.1:8888",
        "transport": None,
        "errors": [],
        "fatals": [],
    }


def test_the_end_of_a_rank_is_understood():
    lines = [
        "startup estimate 30.00 GiB within 20.30 GiB: window 1048576 tokens, 4 requests at once",
        "largest fitting prompt-plus-reply window: 524288 tokens",
        "error: the window does not fit",
        "fatal: rank 1 left",
    ]
    found = parse_anchors(lines)
    assert (found["parallel"], found["fitting_window_tokens"]) == (4, 524288)
    assert (found["errors"], found["fatals"]) == ([lines[2]], [lines[3]])


@pytest.mark.parametrize("line", ["an error: not at the start", "reloading", "preserving x at http://a", "rank 1 is"])
def test_a_line_that_only_resembles_an_anchor_means_nothing(line):
    assert parse_anchors([line]) == parse_anchors([])


@pytest.mark.parametrize(
    ("lines", "transport"),
    [
        (["node:1:9 [0] NCCL INFO Using network IB"], "ib"),
        (["node:1:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0"], "ib"),
        (["node:1:9 [0] NCCL INFO Using network Socket"], "socket"),
        (["Using network IB", "Channel 03 : 0 -> 1 via NET/Socket/0", "Channel 04 : 0 -> 1 via NET/IB/0"], "socket"),
        (["nothing of the kind"], None),
    ],
)
def test_n11_the_transport_that_nccl_chose_is_read_and_one_channel_over_sockets_decides(lines, transport):
    assert parse_anchors(lines)["transport"] == transport
