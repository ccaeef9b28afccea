# SPDX-License-Identifier: Apache-2.0
"""The smoke test against a real HTTP server that answers as it is told by the model's name."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.plays import play

USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
RANKS = [{"rank": 0, "step": 9}, {"rank": 1, "step": 9}]


def text(content: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}


def end(reason: str = "stop", ranks: Any = RANKS) -> list[dict[str, Any]]:
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "sparkpair": {"ranks": ranks}}
    return [finish, {"choices": [], "usage": USAGE}]


REPLIES: dict[str, list[dict[str, Any]]] = {
    "sane": [text("I am "), text("ready."), *end()],
    "four": [text("4"), *end()],
    "blank": end(),
    "collapsed": [*(text("!") for _ in range(20)), *end()],
    "cut": [text("I am ready.")],
    "apart": [text("I am ready."), *end(ranks=[{"rank": 0, "step": 9}, {"rank": 1, "step": 8}])],
    "dying": [text("I am"), {"error": {"message": "rank 1 was lost", "type": "server_error"}}],
}


class Server(BaseHTTPRequestHandler):
    """Serves REPLIES as event streams; the model `silent` never answers until the server is closed."""

    asked: list[dict[str, Any]]
    closing: threading.Event
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "sane"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({**body, "authorization": self.headers["Authorization"]})
        if body["model"] == "locked":
            self.answer(401, {"error": {"message": "missing API key"}})
        elif body["model"] == "silent":
            self.closing.wait(60)
        else:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in REPLIES[body["model"]]:
                self.piece(f": keep-alive\n\ndata: {json.dumps(chunk)}\n\n")
            self.piece("data: [DONE]\n\n" if body["model"] != "cut" else "")
            self.close_connection = True

    def piece(self, part: str) -> None:
        self.wfile.write(f"{len(part.encode()):x}\r\n{part}\r\n".encode())

    def answer(self, status: int, doc: dict[str, Any]) -> None:
        content = json.dumps(doc).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Server,), {"asked": [], "closing": threading.Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield one
        handler.closing.set()
        one.shutdown()
        thread.join()


def task(server: ThreadingHTTPServer, **options: Any) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.server_port}"
    return {"sparkpair.serving.serving_smoke_test": {"url": url, "expected_ranks": 2, **options}}


def test_a_sane_answer_through_all_ranks_passes_and_is_told(server, tmp_path: Path):
    played = play(tmp_path, [task(server), task(server, model="four")])
    assert played.returncode == 0
    told = played.one()
    assert not told["changed"]
    assert (told["model"], told["answer"], told["finish_reason"]) == ("sane", "I am ready.", "stop")
    assert (told["prompt_tokens"], told["completion_tokens"]) == (12, 5)
    assert told["ranks"] == RANKS
    assert told["time_to_first_token_s"] >= 0
    assert told["decode_tokens_per_s"] > 0
    assert played.one(1)["answer"] == "4"


def test_every_answer_that_is_not_sane_fails_with_what_was_found(server, tmp_path: Path):
    words = {
        "blank": "The answer is blank: ''.",
        "collapsed": "nothing but one character repeated",
        "cut": "without a finish reason",
        "apart": "rank 0 at step 9, rank 1 at step 8",
        "dying": "The server broke the reply off: rank 1 was lost",
        "locked": "status 401: missing API key Set api_key",
        "silent": "did not finish its answer within 1 s",
    }
    tasks = [task(server, model=model, timeout=1 if model == "silent" else 180) for model in words]
    played = play(tmp_path, tasks)
    for number, expected in enumerate(words.values()):
        assert played.one(number)["failed"]
        assert expected in played.one(number)["msg"]


def test_the_question_is_asked_as_the_options_say(server, tmp_path: Path):
    options = {"prompt": "2+2", "max_tokens": 5, "temperature": 0.5, "seed": 7, "thinking": True, "api_key": "hush"}
    played = play(tmp_path, [task(server, model="four", **options)], "-vvv")
    assert played.returncode == 0
    assert server.RequestHandlerClass.asked == [
        {
            "model": "four",
            "messages": [{"role": "user", "content": "2+2"}],
            "max_tokens": 5,
            "temperature": 0.5,
            "seed": 7,
            "chat_template_kwargs": {"enable_thinking": True},
            "stream": True,
            "stream_options": {"include_usage": True},
            "authorization": "Bearer hush",
        }
    ]
    assert "hush" not in played.output


def test_check_mode_asks_nothing_and_says_so(server, tmp_path: Path):
    told = play(tmp_path, [task(server)], "--check").one()
    assert told["skipped"]
    assert "none was asked" in told["msg"]
    assert server.RequestHandlerClass.asked == []


def test_a_server_that_is_not_there_is_named(tmp_path: Path):
    missing = {"sparkpair.serving.serving_smoke_test": {"url": "http://127.0.0.1:9", "expected_ranks": 2}}
    wrong = {"sparkpair.serving.serving_smoke_test": {"url": "127.0.0.1:8888"}}
    played = play(tmp_path, [missing, wrong])
    assert "Nothing listens at http://127.0.0.1:9: start the server first" in played.one()["msg"]
    assert "The option url is '127.0.0.1:8888', but must be like http://" in played.one(1)["msg"]
