#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands for an engine's program in a rank's container: its arguments, its log's anchors, and an API on rank 0.

    stand_in.py serve MODEL --tp N --rank R --master ADDR --master-port P [--port P] [--fault WORD] [--check-args]

Faults: `crash` ends with code 7 after the estimate, `deaf` ignores SIGTERM, `socket` says that NCCL talks TCP,
`argument` is refused by the check of arguments, `window` names the largest window that fits and ends with code 3.
"""

import argparse
import http.server
import json
import os
import signal
import socket
import sys
import threading
import time


def say(text: str) -> None:
    print(text, flush=True)


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = {"/v1/models": {"data": [{"id": "stand-in"}]}, "/health": {"ok": True}}.get(self.path)
        body = json.dumps(found).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--fault", choices=["", "crash", "deaf", "socket", "argument", "window"], default="")
    parser.add_argument("--check-args", action="store_true")
    options = parser.parse_args()
    if options.check_args:
        if options.fault == "argument":
            print("error: --fault argument cannot be served", file=sys.stderr)
            return 2
        say("arguments ok")
        return 0
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.fault == "deaf" else lambda *_: os._exit(0))
    say("startup estimate 0.12 GiB within 20.30 GiB: window 16384 tokens, 1 request at once")
    say(f"environment {json.dumps(dict(os.environ), sort_keys=True)}")
    if options.fault == "crash":
        print("error: going down", file=sys.stderr, flush=True)
        return 7
    if options.fault == "window":
        say("largest fitting prompt-plus-reply window: 8192 tokens")
        return 3
    say("NCCL INFO Using network " + ("Socket" if options.fault == "socket" else "IB"))
    address = (options.master, options.master_port)
    if options.rank == 0:
        with socket.create_server(address, reuse_port=True) as server:
            joined = [server.accept()[0] for _ in range(options.tp - 1)]
            say("rank 0 ready in 0.1 s")
            api = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Api)
            threading.Thread(target=api.serve_forever, daemon=True).start()
            say(f"serving stand-in at http://127.0.0.1:{options.port}")
            # The peer's end is this rank's too.
            joined[0].recv(1)
            say("fatal: rank 1 left")
            return 4
    while True:
        try:
            link = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    say(f"rank {options.rank} ready in 0.1 s")
    link.recv(1)
    while options.fault == "deaf":
        time.sleep(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
