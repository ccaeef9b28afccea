#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands for TensorFold's program in a rank's container: its parser, its log's anchors, and a small API on rank 0.

    tensorfold serve SNAPSHOT --tp N --rank R --master ADDR --master-port P [--port P --name ID] ... [--help]

What it does wrong comes from the environment, as deployers set it with sparkpair_extra_env: STAND_IN_FITS is the
largest window that fits in tokens, STAND_IN_NCCL how many launches fail to open a NCCL connection (counted in the
kernel cache, and only while the connection is split), STAND_IN_SOCKET lets NCCL talk TCP, STAND_IN_COLLAPSED lets the
model repeat one character.
"""

import argparse
import http.server
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time

ENV = os.environ
PASSPHRASE = "The passphrase is "


def say(text: str) -> None:
    print(text, flush=True)


def answer(body: dict) -> dict:
    """The message that the model would give."""
    question = body["messages"][-1]["content"]
    if not isinstance(question, str):
        question = " ".join(part.get("text", "a picture") for part in question)
    if ENV.get("STAND_IN_COLLAPSED"):
        return {"role": "assistant", "content": "!" * 32}
    if body.get("tools"):
        call = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"city": "Oslo", "days": 3})}
        calls = [{"id": "call_1", "index": 0, "type": "function", "function": call}]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    if (body.get("response_format") or {}).get("type") == "json_schema":
        return {"role": "assistant", "content": json.dumps({"city": "Oslo", "population": 700000})}
    at = question.find(PASSPHRASE)
    if at >= 0:
        return {"role": "assistant", "content": question[at + len(PASSPHRASE) :].split(".")[0]}
    return {"role": "assistant", "content": "A red square. I am ready."}


def common_length(one: str, other: str) -> int:
    """How many characters two texts begin alike with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options: argparse.Namespace
    seen: tuple[str, ...] = ()

    def do_GET(self) -> None:
        model = {"id": self.options.name, "object": "model", "owned_by": "tensorfold"}
        health = {
            "ok": True,
            "backend": "tensorfold",
            "busy": False,
            "requests_running": 0,
            "requests_total": len(self.seen),
            "streams": {"decoding": 0, "max": self.options.parallel},
            "pool_tokens": 2922496,
            "pool_free_tokens": 2922496,
            "context_length": self.options.context,
        }
        found = {"/v1/models": {"object": "list", "data": [model]}, "/health": health}.get(self.path)
        self.send(200 if found else 404, json.dumps(found or {"error": {"message": "no such route"}}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = answer(body)
        text = json.dumps(body["messages"])
        cached = max((common_length(text, earlier) for earlier in Api.seen), default=0) // 4
        Api.seen = (*Api.seen, text)
        words = len(text) // 4 + 1
        usage = {"prompt_tokens": words, "completion_tokens": 8, "total_tokens": words + 8}
        usage["prompt_tokens_details"] = {"cached_tokens": min(cached, words - 1)}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        common = {"id": "chatcmpl-1", "created": 1, "model": self.options.name}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            document = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            self.send(200, json.dumps({**document, "tensorfold": {"decode_s": 0.1}}).encode())
            return
        pieces = [{"index": 0, "delta": message}, {"index": 0, "delta": {}, "finish_reason": reason}]
        chunks = [{**common, "object": "chat.completion.chunk", "choices": [piece]} for piece in pieces]
        chunks.append({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
        self.send(200, "".join(lines).encode(), "text/event-stream")

    def send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="tensorfold serve")
    result.add_argument("model")
    for name in ("--tp", "--rank", "--master-port", "--context", "--parallel", "--max-tokens"):
        result.add_argument(name, type=int, required=True)
    result.add_argument("--port", type=int)
    result.add_argument("--reasoning-effort", choices=["low", "high", "max"])
    for name in ("--master", "--name", "--host", "--drafter", "--alias"):
        result.add_argument(name)
    for name in ("--thinking", "--no-thinking", "--vision", "--vision-urls"):
        result.add_argument(name, action="store_true")
    return result


def fails_to_connect(wanted: int) -> bool:
    """Whether this launch is one of those that cannot open their connection; only a split one can fail."""
    if ENV.get("TF_GLM_HC_SPLIT") == "0":
        return False
    counter = pathlib.Path("/cache/launches")
    launches = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(launches + 1))
    return launches < wanted


def main() -> int:
    assert sys.argv[1] == "serve"
    options = parser().parse_args(sys.argv[2:])
    if not os.path.isfile(os.path.join(options.model, "config.json")):
        print(f"error: {options.model} has no config.json", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    say("NVIDIA Software License Agreement and Product-Specific Terms for NVIDIA AI Products govern this image")
    if options.rank == 0:
        fits = int(ENV.get("STAND_IN_FITS", "1048576"))
        if options.context > fits:
            say(f"largest fitting prompt-plus-reply window: {fits:,} tokens")
            return 1
        say(f"startup estimate 88.09 GiB within 103.20 GiB (allocated window {options.context} tokens)")
    say("loading weights: 12.0 of 80.1 GiB")
    if options.rank > 0 and fails_to_connect(int(ENV.get("STAND_IN_NCCL", "0"))):
        print("torch.distributed.DistBackendError: NCCL error 2: unhandled system error", file=sys.stderr, flush=True)
        return 1
    if ENV.get("NCCL_DEBUG") == "INFO":
        say("NCCL INFO Using network " + ("Socket" if ENV.get("STAND_IN_SOCKET") else "IB"))
    address = (options.master, options.master_port)
    if options.rank == 0:
        with socket.create_server(address) as server:
            joined = [server.accept()[0] for _ in range(options.tp - 1)]
            say("rank 0 ready in 0.1 s")
            Api.options = options
            api = http.server.ThreadingHTTPServer((options.host, options.port), Api)
            threading.Thread(target=api.serve_forever, daemon=True).start()
            say(f"serving {options.name} (exl3) at http://{options.host}:{options.port}")
            joined[0].recv(1)
            return 1
    while True:
        try:
            link = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    say(f"rank {options.rank} ready in 0.1 s")
    link.recv(1)
    return 1


if __name__ == "__main__":
    sys.exit(main())
