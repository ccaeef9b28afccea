#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank for the tests of the pair's supervisor: cheap, and as unforgiving about a lost peer as a real one.

    ranks.py RANK MASTER MASTER_PORT API_PORT DIRECTORY

Rank 0 answers /v1/models and /health, with the step of both ranks, when rank 1 has joined. The loss of the other ends
a rank: code 4 for rank 0, with a line that blames rank 1; code 0 for rank 1. A file `fault` in the directory makes a
start fail: its text is the error, its first word the rank. Every start adds a line to `starts`.
"""

import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
import typing


def main() -> int:
    rank, port, directory = int(sys.argv[1]), int(sys.argv[4]), sys.argv[5]
    master = (sys.argv[2], int(sys.argv[3]))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with open(os.path.join(directory, "starts"), "a") as file:
        file.write(f"rank{rank}\n")
    fault = os.path.join(directory, "fault")
    if os.path.exists(fault):
        with open(fault) as file:
            blamed, _, text = file.read().partition(" ")
        if int(blamed) == rank:
            print(f"error: {text}", flush=True)
            return 7
    if rank == 0:
        with socket.create_server(master) as server:
            peer, _ = server.accept()
        api = http.server.ThreadingHTTPServer(("0.0.0.0", port), Api)
        threading.Thread(target=api.serve_forever, daemon=True).start()
        print("serving", flush=True)
        while step := peer.recv(8):
            Api.steps = {0: Api.steps[0] + 1, 1: int.from_bytes(step, "big")}
            peer.sendall(step)
        print("fatal: rank 1 left", flush=True)
        return 4
    while True:
        try:
            peer = socket.create_connection(master)
            break
        except OSError:
            time.sleep(0.02)
    peer.sendall((1).to_bytes(8, "big"))
    while step := peer.recv(8):
        time.sleep(0.05)
        peer.sendall((int.from_bytes(step, "big") + 1).to_bytes(8, "big"))
    return 0


class Api(http.server.BaseHTTPRequestHandler):
    steps: typing.ClassVar = {0: 0, 1: 0}

    def do_GET(self) -> None:
        answers = {
            "/v1/models": {"data": [{"id": "stand-in"}]},
            "/health": {"ok": True, "ranks": [{"rank": rank, "step": step} for rank, step in self.steps.items()]},
        }
        body = json.dumps(answers.get(self.path)).encode()
        self.send_response(200 if self.path in answers else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


if __name__ == "__main__":
    sys.exit(main())
