# SPDX-License-Identifier: Apache-2.0
"""Configurations of the engine side by side in one run: drafts, requests at once, resumed prompts, slices of prompts.

    python bench/engine_side_by_side.py [--rounds N] [--tokens N] [--words N] [--json FILE] [--markdown FILE]

Two ranks on this machine serve a miniature whose sublayers are weakened, so that its drafters agree with it often.
Every round starts each configuration in turn and measures it as `sparkpair bench` does, because machines differ and are
busy; the figures are medians over the rounds. Only ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from report import add_outputs, publish
from sparkpair.bench import measures
from sparkpair.bench.client import Client
from sparkpair.bench.report import table
from sparkpair.checkpoint.miniature import write_miniature

from tests.engine.agreeing import weaken, write_agreeing_drafter
from tests.engine.pair.ranks import running

WORLD = 2
STREAMS = (1, 4)
FILL_STREAMS = 3
BUDGET_MS = 200
FIRST_WORDS = 30

Figures = dict[str, float]


def configurations(drafter: pathlib.Path) -> dict[str, list[str]]:
    """Arguments by name; the first is what the others are compared with."""
    return {
        "serial": ["--copy-max", "0"],
        "copy drafts": ["--copy-max", "15"],
        "MTP head": ["--copy-max", "0", "--drafter", "mtp"],
        "DFlash2": ["--copy-max", "0", "--drafter", str(drafter)],
    }


def decoding(client: Client, tokens: int) -> Figures:
    """Aggregate tokens a second and tokens a round, for each number of streams."""
    found: Figures = {}
    for streams in STREAMS:
        row = measures.decode(client, "prose", streams, tokens)
        found[f"{streams}: tok/s"] = row["aggregate_tok_s"]
        found[f"{streams}: tokens a round"] = row["tokens_a_round"]
    return found


def filling(client: Client, words: int, tokens: int) -> Figures:
    """Gaps of three streams while a long prompt is read."""
    row = measures.fill(client, words, FILL_STREAMS, tokens)
    return {name: row[name] for name in ("gap_p50_ms", "gap_p90_ms", "gap_max_ms", "first_token_s", "prompt_tokens")}


def round_time(client: Client, tokens: int) -> Figures:
    """The same streams with nothing to read beside them: the longest gap is a round."""
    row = measures.decode(client, "prose", FILL_STREAMS, tokens)
    return {"round_ms": 1000 * FILL_STREAMS / row["aggregate_tok_s"]}


def reusing(client: Client, words: int) -> Figures:
    """Time to the first token of a new prompt, of the same again, and how much sooner that is."""
    new, again = measures.reuse(client, words)[:2]
    return {
        "prompt_tokens": new["prompt_tokens"],
        "new_s": new["first_token_s"],
        "again_s": again["first_token_s"],
        "times_sooner": again["times_sooner"],
    }


def say(name: str, figures: Figures) -> Figures:
    """Show figures as they come."""
    print(name, {figure: round(value, 3) for figure, value in figures.items()}, file=sys.stderr, flush=True)
    return figures


def one_round(model: pathlib.Path, drafter: pathlib.Path, options: argparse.Namespace) -> dict[str, Figures]:
    """Every configuration once."""
    found: dict[str, Figures] = {}
    for name, arguments in configurations(drafter).items():
        with running(model, WORLD, "--parallel", "4", *arguments) as world:
            world.start_all()
            client = Client(world.url)
            measures.decode(client, "prose", 1, 8)
            found[f"decode, {name}"] = say(name, decoding(client, options.tokens))
            if name == "serial":
                found["reuse"] = say("reuse", reusing(client, options.words))
    for budget in (0, BUDGET_MS):
        arguments = ["--copy-max", "0", "--fill-budget-ms", str(budget), "--cache-entries", "0"]
        with running(model, WORLD, "--parallel", "4", *arguments) as world:
            world.start_all()
            client = Client(world.url)
            # The first prompt beside decoding requests teaches the budget what a layer costs.
            filling(client, FIRST_WORDS, options.tokens)
            gaps = filling(client, options.words, options.tokens * 4) | round_time(client, options.tokens)
            found[f"fill, budget {budget} ms"] = say(f"fill, budget {budget} ms", gaps)
    return found


def medians(rounds: list[dict[str, Figures]]) -> dict[str, Figures]:
    """The median of every figure over the rounds."""
    return {
        name: {figure: statistics.median(found[name][figure] for found in rounds) for figure in figures}
        for name, figures in rounds[0].items()
    }


def rows_of(found: dict[str, Figures], group: str) -> list[dict[str, Any]]:
    """One row for each configuration of a group, with the ratio to the first where it is of speed."""
    rows: list[dict[str, Any]] = []
    for name, figures in found.items():
        if not name.startswith(group):
            continue
        row: dict[str, Any] = {"configuration": name.removeprefix(group).lstrip(", ") or group, **figures}
        for streams in STREAMS if group == "decode" else ():
            row[f"{streams}: ratio"] = figures[f"{streams}: tok/s"] / found["decode, serial"][f"{streams}: tok/s"]
        if group == "decode":
            row["4 over 1"] = figures["4: tok/s"] / figures["1: tok/s"]
        rows.append(row)
    return rows


def main() -> int:
    """Measure and report. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that every configuration is measured")
    parser.add_argument("--tokens", type=int, default=64, help="length of decoded replies")
    parser.add_argument("--words", type=int, default=1000, help="size of the long prompts")
    add_outputs(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model, drafter = pathlib.Path(directory) / "model", pathlib.Path(directory) / "drafter"
        write_miniature(model, seed=1, overrides={})
        weaken(model, strength=0.1)
        write_agreeing_drafter(drafter, model)
        rounds = [one_round(model, drafter, options) for _ in range(options.rounds)]
    found = medians(rounds)
    text = "\n\n".join(f"{group}\n\n{table(rows_of(found, group))}" for group in ("decode", "reuse", "fill")) + "\n"
    publish(options, text, {"rounds": rounds, "medians": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
