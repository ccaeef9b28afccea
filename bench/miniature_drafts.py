# SPDX-License-Identifier: Apache-2.0
"""Copy, MTP and DFlash2 drafts beside none, on the skills of a trained miniature, side by side in one run.

    python bench/miniature_drafts.py CHECKPOINT [--drafter DIR] [--cases N] [--skills A,B] [--modes greedy,sampled]
        [--rounds N] [--json FILE] [--markdown FILE]

Two ranks on this machine serve the checkpoint. Every round starts each configuration in turn and asks it the same
held-out cases one after the other, through the API; times are the engine's own, of decoding alone, and each figure is
the median over the rounds. Only ratios of one run mean something. Ends with 1 when a reply is not that of the serial
configuration.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "engine"))

from report import add_outputs, publish
from sparkpair.bench.report import table
from training.asking import Asking, said_in
from training.cases import Case, Said
from training.scores import cases_of, chosen_skills

from tests.engine.pair.ranks import running

WORLD = 2
SERIAL = "serial"
ALL = "all"

# By mode and skill: tokens after the first, rounds that brought them, and seconds.
Sums = dict[tuple[str, str], tuple[int, int, float]]
Replies = dict[tuple[str, int], Said]


def configurations(drafter: pathlib.Path) -> dict[str, list[str]]:
    """Arguments by name; the first is what the others are compared with."""
    none = ["--copy-max", "0"]
    return {
        SERIAL: none,
        "copy": [],
        "MTP": [*none, "--drafter", "mtp"],
        "DFlash2": [*none, "--drafter", str(drafter)],
        "copy + MTP": ["--drafter", "mtp"],
        "copy + DFlash2": ["--drafter", str(drafter)],
    }


def ask_all(url: str, cases: list[Case], modes: list[str], seed: int) -> tuple[Sums, Replies]:
    """Figures and replies of a server, one request at a time."""
    sums: Sums = {}
    replies: Replies = {}
    with Asking(url) as asking:
        asking.reply(cases[0], "greedy", seed)  # what the first request sets up is not counted
        for number, case in enumerate(cases):
            for mode in modes:
                found = asking.reply(case, mode, seed + number)
                replies[mode, number] = said_in(found)
                told = found["sparkpair"]
                tokens = int(found["usage"]["completion_tokens"]) - 1
                rounds = tokens - int(told["accepted_tokens"])
                for skill in (case.skill, ALL):
                    before = sums.get((mode, skill), (0, 0, 0.0))
                    sums[mode, skill] = (before[0] + tokens, before[1] + rounds, before[2] + told["decode_s"])
    return sums, replies


def rows_of(rounds: list[dict[str, Sums]]) -> list[dict[str, Any]]:
    """A row for each mode and skill: tokens a second without drafts; with them the ratio, and tokens a round."""
    rows: list[dict[str, Any]] = []
    for mode, skill in rounds[0][SERIAL]:
        speeds = {
            name: statistics.median(
                found[name][mode, skill][0] / max(found[name][mode, skill][2], 1e-9) for found in rounds
            )
            for name in rounds[0]
        }
        row: dict[str, Any] = {"mode": mode, "skill": skill, "serial tok/s": speeds[SERIAL]}
        for name, sums in rounds[0].items():
            if name != SERIAL:
                tokens, verified, _ = sums[mode, skill]
                row[f"{name}: ratio"] = speeds[name] / max(speeds[SERIAL], 1e-9)
                row[f"{name}: tokens a round"] = tokens / max(verified, 1)
        rows.append(row)
    return rows


def main() -> int:
    """Measure and report. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=pathlib.Path, metavar="CHECKPOINT", help="the trained miniature's directory")
    parser.add_argument("--drafter", type=pathlib.Path, metavar="DIR", help="its drafter (default CHECKPOINT/drafter)")
    parser.add_argument("--cases", type=int, default=8, metavar="N", help="of a skill (default %(default)s)")
    parser.add_argument("--skills", metavar="A,B", help="some skills only")
    parser.add_argument("--modes", default="greedy,sampled", help="which of them (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="times each is measured (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of cases and draws (default %(default)s)")
    add_outputs(parser)
    options = parser.parse_args()
    cases = cases_of(chosen_skills(options.skills), options.cases, options.seed)
    different: list[dict[str, Any]] = []
    rounds: list[dict[str, Sums]] = []
    for _ in range(options.rounds):
        rounds.append({})
        wanted: Replies = {}
        for name, arguments in configurations(options.drafter or options.checkpoint / "drafter").items():
            with running(options.checkpoint, WORLD, *arguments) as world:
                world.start_all()
                rounds[-1][name], replies = ask_all(world.url, cases, options.modes.split(","), options.seed)
            wanted = wanted or replies
            unlike = [place for place, said in replies.items() if said != wanted[place]]
            different += [
                {"configuration": name, "mode": mode, "case": number, "skill": cases[number].skill}
                for mode, number in unlike
            ]
            tokens, verified, seconds = (sum(part) for part in zip(*rounds[-1][name].values(), strict=True))
            print(f"{name}: {tokens / seconds:.1f} tok/s, {tokens / verified:.2f} a round", file=sys.stderr, flush=True)
    rows = rows_of(rounds)
    same = (
        f"{len(different)} replies were not those of the serial configuration"
        if different
        else "All replies were the same"
    )
    publish(options, f"{table(rows)}\n\n{same}.\n", {"rows": rows, "different": different})
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
