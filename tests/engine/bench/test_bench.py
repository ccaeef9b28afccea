# SPDX-License-Identifier: Apache-2.0
"""`sparkpair bench` against a server whose events come at known times, and against real ranks."""

from __future__ import annotations

import http.server
import json
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from sparkpair.bench import measures
from sparkpair.bench.client import Client, Reply
from sparkpair.bench.prompts import KINDS, decode_prompt, long_prompt
from sparkpair.bench.report import markdown
from sparkpair.checkpoint.miniature import write_miniature
from sparkpair.cli import main
from sparkpair.errors import UserError

from tests.engine.pair.ranks import running


def reply(sent: float, arrivals: list[float], tokens: int) -> Reply:
    return Reply(sent, arrivals, tokens=tokens, counted=True, text="x")


def test_a_rate_leaves_the_first_token_and_the_prompt_out() -> None:
    found = reply(10.0, [12.0, 12.5, 14.0], 21)
    assert found.first_s == 2.0
    assert found.rate == 10.0
    assert found.gaps == [0.5, 1.5]


class Replies:
    """A client whose replies are known; every chat takes the next."""

    url, model = "http://known", "m"

    def __init__(self, replies: list[Reply], rounds: list[int]) -> None:
        self._replies = iter(replies)
        self._rounds = iter(rounds)
        self._lock = threading.Lock()

    def chat(self, messages: list[dict[str, str]], on_event: Any = None, **extra: Any) -> Reply:
        with self._lock:
            found = next(self._replies)
        if on_event is not None:
            on_event()
        return found

    def get(self, path: str) -> dict[str, Any]:
        return {"rounds_total": next(self._rounds)}


def test_a_wave_is_measured_from_the_earliest_first_to_the_latest_last_event() -> None:
    known = Replies([reply(0.0, [1.0, 5.0], 9), reply(0.0, [2.0, 6.0], 13)], [100, 110])
    row = measures.decode(known, "prose", 2, 8)  # type: ignore[arg-type]
    assert row["aggregate_tok_s"] == (8 + 12) / 5
    assert row["end_to_end_tok_s"] == 22 / 6
    assert row["stream_tok_s"] == (2 + 3) / 2
    assert row["first_token_ms"] == 1500
    assert row["tokens_a_round"] == 2.2


def test_prefill_has_both_definitions() -> None:
    short = [reply(0.0, [0.5], 1), reply(0.0, [0.4], 1), reply(0.0, [0.6], 1)]
    long = reply(0.0, [2.5], 1)
    long.prompt_tokens, long.cached_tokens = 1000, 200
    (row,) = measures.prefill(Replies([*short, long], []), [900])  # type: ignore[arg-type]
    assert row["tok_s"] == 400
    assert row["net_tok_s"] == 400


def test_gaps_of_a_fill_are_those_that_touch_the_time_of_the_prompt() -> None:
    # The prompt is sent at 10 and has its first token at 20.
    talking = [reply(0.0, [1.0, 9.0, 12.0, 13.0, 19.0, 24.0, 25.0], 7), reply(0.0, [8.0, 9.5, 10.5, 15.0], 4)]
    row = measures.fill(Replies([*talking, reply(10.0, [20.0], 1)], []), 100, 2, 8)  # type: ignore[arg-type]
    assert row["gap_max_ms"] == 6000
    assert row["gap_p50_ms"] == pytest.approx(1000 * (3.0 + 4.5) / 2)  # 3, 1, 6, 5 and 1, 4.5
    assert row["events_received"] == 5
    assert row["ended_before"] == 1


def test_prompts_are_of_their_kind_and_long_ones_are_new_every_time() -> None:
    assert decode_prompt("prose", 0, 512) == decode_prompt("prose", len(KINDS["prose"]), 512)
    assert len({decode_prompt("structured", stream, 512) for stream in range(18)}) == 18
    assert long_prompt(50) != long_prompt(50)
    assert long_prompt(50, fresh=False) == long_prompt(50, fresh=False)
    assert len(long_prompt(5000).split()) >= 5000


class Picky(http.server.BaseHTTPRequestHandler):
    """A server that knows no forcing fields and does not say how many tokens there were."""

    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        if "ignore_eos" in body:
            self._answer(400, b'{"error": "unknown field"}')
            return
        events = [{"choices": [{"delta": {"role": "assistant"}}]}]
        events += [{"choices": [{"delta": {"content": "four"}}]}, {"choices": [{"delta": {"reasoning": "mind"}}]}]
        events += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._answer(200, "".join([*lines, "data: [DONE]\n\n"]).encode())

    def do_GET(self) -> None:
        self._answer(404, b"nothing")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def picky() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Picky) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        Picky.bodies.clear()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def test_a_server_that_refuses_the_forcing_fields_is_asked_without_them(picky: str) -> None:
    client = Client(picky, model="m")
    began = time.monotonic()
    found = client.chat([{"role": "user", "content": "x"}], ignore_eos=True, max_tokens=9, chat_template_kwargs={})
    assert began <= found.sent <= found.arrivals[0] <= found.arrivals[1] <= time.monotonic()
    assert (found.text, found.finish, found.tokens) == ("fourmind", "stop", 2)
    assert [sorted(body) for body in Picky.bodies[1:]] == [
        ["chat_template_kwargs", "max_tokens", "messages", "model", "stream", "stream_options"]
    ]
    assert client.get("/health") == {}


def test_what_cannot_be_measured_is_said_in_one_line(picky: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="names no model; name it with --model"):
        Client(picky)
    assert main(["bench", "http://127.0.0.1:1"]) == 2
    assert "http://127.0.0.1:1 cannot be reached" in capsys.readouterr().err
    assert main(["bench", picky, "--modes", "speed"]) == 2
    assert "--modes speed: expected some of decode, prefill, reuse, fill" in capsys.readouterr().err
    assert main(["bench", picky, "--streams", "0"]) == 2
    assert "--streams 0: each between 1 and 64" in capsys.readouterr().err


@pytest.mark.pair
def test_a_real_server_is_measured_and_written_down(tmp_path: pathlib.Path) -> None:
    write_miniature(tmp_path / "m", seed=1, overrides={})
    with running(tmp_path / "m", 1, "--parallel", "4") as world:
        world.start_all()
        arguments = ["--streams", "1,4", "--tokens", "16", "--words", "20,150", "--kinds", "prose"]
        written = ["--json", str(tmp_path / "out.json"), "--markdown", str(tmp_path / "out.md")]
        assert main(["bench", world.url, *arguments, *written]) == 0
    document = json.loads((tmp_path / "out.json").read_text())
    assert (tmp_path / "out.md").read_text() == markdown(document)
    one, four = document["decode"]
    assert (one["tokens"], four["tokens"]) == (16, 64)
    assert one["replies"][0] == four["replies"][0]  # the same first prompt, alone and beside three others
    assert four["tokens_a_round"] > 1.5
    assert [row["cached_tokens"] == 0 for row in document["prefill"]] == [True, True]
    assert 150 <= document["prefill"][1]["prompt_tokens"] < 1500
    assert document["reuse"][1]["cached_tokens"] == document["reuse"][1]["prompt_tokens"]
    assert document["reuse"][1]["times_sooner"] > 5
    assert document["reuse"][3]["cached_tokens"] > 128
    assert document["fill"][0]["streams"] == 3
    assert document["fill"][0]["gap_max_ms"] >= document["fill"][0]["gap_p50_ms"]
