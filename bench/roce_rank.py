# SPDX-License-Identifier: Apache-2.0
"""One of two ranks that gather tensors through gloo and through RDMA writes in turn; see roce_side_by_side.py.

    python3 roce_rank.py RANK MASTER OWN PORT RAILS ROUNDS

MASTER is rank 0's address on the link and OWN this rank's; ports PORT and PORT + 1 of rank 0 are used. Rank 0 prints
JSON: for each size in KiB the median, least and most microseconds of a gather, both ways.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from sparkpair.comm.control import listen
from sparkpair.comm.group import TensorGroup, host_store, reach_store
from sparkpair.comm.rails import look_at_rails, parse_rails
from sparkpair.comm.roce import OneShotGather
from sparkpair.comm.roce_group import RoceGroup

KIB = (1, 4, 16, 64, 512)
WARM = 3
# Gathers one after another of one way before it is the other's turn.
TURN = 5
LIMIT_S = 120.0


def store(rank: int, master: str, port: int) -> object:
    """The meeting place of one group."""
    if rank == 0:
        return host_store(listen(master, port, "PORT"), 2)
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return reach_store(master, port, 2)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise


def times(group: TensorGroup, tensor: torch.Tensor, count: int) -> list[float]:
    """Microseconds of that many gathers; every sum is used, as a model does."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        group.sum_partials(tensor)
        found.append((time.perf_counter() - began) * 1e6)
    return found


def main() -> int:
    rank, master, own, port, rails, rounds = sys.argv[1:]
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    gather = OneShotGather(int(rank), 2, look_at_rails(parse_rails(rails)), max(KIB) * 1024, LIMIT_S, print)
    common = {"address": own, "timeout_s": LIMIT_S, "device": cpu}
    gloo = TensorGroup(store(int(rank), master, int(port)), int(rank), 2, **common)
    verbs = RoceGroup(gather, store(int(rank), master, int(port) + 1), int(rank), 2, **common)
    verbs.settle()
    ways = {"gloo": gloo, "roce": verbs}
    rows = []
    for kib in KIB:
        tensor = torch.randn(kib * 256, generator=torch.Generator().manual_seed(int(rank)))
        same = torch.equal(gloo.sum_partials(tensor), verbs.sum_partials(tensor))
        found: dict[str, list[float]] = {name: [] for name in ways}
        for group in ways.values():
            times(group, tensor, WARM)
        for _ in range(int(rounds)):
            for name, group in ways.items():
                found[name] += times(group, tensor, TURN)
        row: dict[str, object] = {"kib": kib, "same_bits": same}
        for name, values in found.items():
            row[name] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
        row["ratio"] = statistics.median(found["roce"]) / statistics.median(found["gloo"])
        rows.append(row)
    if rank == "0":
        print(json.dumps({"gathers": int(rounds) * TURN, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
