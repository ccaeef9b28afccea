# SPDX-License-Identifier: Apache-2.0
"""Gathers as RDMA writes beside gloo's over TCP, on the same link of two virtual machines, in one run.

    python bench/roce_side_by_side.py [--rounds N] [--json FILE] [--markdown FILE]

The machines that run are taken, or two are started (see docs/virtual_pair.md). They have no network: torch and the
engine are brought from here. Both ways are measured in the same two processes in turn, as the engine calls them, a sum
of both ranks' parts. The devices are Soft-RoCE on emulated processors, so only ratios mean something, and they say
little of a ConnectX port, where the kernel has no part in a write.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from report import add_outputs, publish

from tests.pair import layout, machines
from tests.pair.machines import Machine
from tests.pair.paths import ROOT
from tests.pair.roce.starting import in_words, rails_of

PLACE = "/tmp/bench"
PORT = 29700
LIMIT_S = 900
# What torch needs on a machine that has Python only; its headers and tests are left out.
LIBRARIES = ("torch", "torchgen", "numpy", "numpy.libs", "typing_extensions.py", "sympy", "mpmath", "networkx")
MORE = ("jinja2", "markupsafe", "filelock", "fsspec")
LEFT_OUT = ("__pycache__", "torch/include", "torch/test")


def bring(machine: Machine) -> None:
    """Put torch, the engine and the measuring rank there."""
    site = Path(sysconfig.get_paths()["purelib"])
    machine.run(f"rm -rf {PLACE}; mkdir {PLACE}")
    names = [name for name in (*LIBRARIES, *MORE) if (site / name).exists()]
    left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    for folder, words in (
        (site, names),
        (ROOT / "engine" / "src", ["sparkpair"]),
        (ROOT / "bench", ["roce_rank.py"]),
    ):
        with subprocess.Popen(["tar", "c", *left_out, "-C", str(folder), *words], stdout=subprocess.PIPE) as packing:
            subprocess.run(
                machine.ssh(f"tar x -C {PLACE}"), stdin=packing.stdout, check=True, timeout=LIMIT_S, capture_output=True
            )


def measure(pair: dict[str, Machine], rounds: int) -> dict[str, Any]:
    """The figures of both ways, as rank 0 printed them."""
    wire = layout.wires(2)[0]
    names = layout.NAMES[:2]
    running = []
    for rank, name in enumerate(names):
        own = layout.address(wire, name)
        words = [rank, layout.address(wire, names[0]), own, PORT, in_words(rails_of(pair, name)), rounds]
        command = f"cd {PLACE} && PYTHONPATH={PLACE} python3 roce_rank.py {' '.join(map(str, words))}"
        running.append(subprocess.Popen(pair[name].ssh(command), stdout=subprocess.PIPE, text=True))
    told = [process.communicate(timeout=LIMIT_S)[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("error: a rank did not finish; what it said is above")
    figures: dict[str, Any] = json.loads(told[0].splitlines()[-1])
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    lines = ["| A rank's part | RDMA writes, ms | gloo over TCP, ms | ratio | same bits |", "|" + " --- |" * 5]
    for row in figures["rows"]:
        cells = [
            f"{row[way]['median'] / 1000:.2f} ({row[way]['least'] / 1000:.2f} to {row[way]['most'] / 1000:.1f})"
            for way in ("roce", "gloo")
        ]
        same = "yes" if row["same_bits"] else "NO"
        lines.append(f"| {row['kib']} KiB | {cells[0]} | {cells[1]} | {row['ratio']:.2f} | {same} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="turns of five gathers of either way (default 8)")
    add_outputs(parser)
    options = parser.parse_args()
    with machines.found_or_running() as pair:
        machines.give_addresses(pair)
        for machine in pair.values():
            bring(machine)
        figures = measure(pair, options.rounds)
    publish(options, table(figures), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
