# SPDX-License-Identifier: Apache-2.0
"""One rank that gathers over verbs and nothing else, on a virtual machine: the engine's gather without torch.

    python3 rank.py RANK MASTER PORT RAILS GATHERS WAIT_S

Two ranks exchange endpoints over one TCP connection, their control channel, and gather parts of many sizes whose
contents both know. Prints `gathers N` now and then and `all N gathers are right` at the end; ends as the engine does,
with one line and code 2 or 4.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
import time

from sparkpair.comm.rails import look_at_rails, parse_rails
from sparkpair.comm.roce import OneShotGather
from sparkpair.errors import UserError

PAYLOAD = 512 * 1024
SIZES = (8, 1024, 4096, 16384, 65536, 100_000, PAYLOAD)


def say(line: str) -> None:
    print(line, flush=True)


def meet(rank: int, master: str, port: int) -> socket.socket:
    """The connection between the two ranks; rank 0 may come later."""
    if rank == 0:
        with socket.create_server((master, port)) as server:
            server.settimeout(120)
            return server.accept()[0]
    for _ in range(600):
        try:
            return socket.create_connection((master, port), timeout=120)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("rank 0 did not come")


def part(rank: int, number: int, nbytes: int) -> bytes:
    """What a rank gathers."""
    piece = random.Random(f"{rank} {number}").randbytes(1024)
    return (piece * (nbytes // 1024 + 1))[:nbytes]


def run(rank: int, master: str, port: int, rails: str, gathers: int, wait_s: float) -> None:
    """Gather that often. Raises UserError and its kinds."""
    gather = OneShotGather(rank, 2, look_at_rails(parse_rails(rails)), PAYLOAD, wait_s, say)
    control = meet(rank, master, port)
    stream = control.makefile("rw")
    closed = select.poll()
    closed.register(control, select.POLLRDHUP)
    gather.gone = lambda seconds: bool(closed.poll(seconds * 1000))

    def exchange(mine: object) -> object:
        stream.write(json.dumps(mine) + "\n")
        stream.flush()
        return json.loads(stream.readline())

    theirs = exchange(gather.endpoint)
    gather.connect([gather.endpoint, theirs] if rank == 0 else [theirs, gather.endpoint])
    exchange("connected")
    gather.try_rails()
    say("the rails carry")
    for number in range(gathers):
        nbytes = SIZES[number % len(SIZES)]
        own = gather.begin(nbytes)
        gather.table[own : own + nbytes] = part(rank, number, nbytes)
        for other, at in enumerate(gather.finish()):
            if gather.table[at : at + nbytes] != part(other, number, nbytes):
                raise SystemExit(f"gather {number}: the part of rank {other} is not what it was")
        if number % 50 == 0:
            say(f"gathers {number}")
    exchange("done")
    say(f"all {gathers} gathers are right")


def main() -> int:
    rank, master, port, rails, gathers, wait_s = sys.argv[1:]
    try:
        run(int(rank), master, int(port), rails, int(gathers), float(wait_s))
    except UserError as error:
        say(f"{error.label}: {error}")
        return error.exit_code
    except RuntimeError as error:
        say(f"fatal: {error}")
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
