# SPDX-License-Identifier: Apache-2.0
"""`python -m training.evaluate twin WORK` or `... server URL`: score every skill on held-out cases.

The first asks the twin of the weights in a directory of training, at once and greedily; the second a running server
through its API, greedily and at the checkpoint's own sampling. Exit status 0: every skill has 95 % or more.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

import torch

from training import scores, state
from training.encode import Encoder
from training.replying import Replying
from training.train import prepare
from training.twin.model import Twin, products_dtype


def by_twin(options: argparse.Namespace, cases: list[scores.Case]) -> list[scores.Result]:
    """Results of the twin. Raises SystemExit when nothing was trained."""
    device = torch.device(options.device)
    document = prepare(options.work, options.size)
    twin = Twin(document, products_dtype(device))
    if state.load(options.work, twin, None) is None:
        raise SystemExit(f"{options.work} holds no trained model")
    stops = document["text_config"]["eos_token_id"]
    judge = Replying(twin.to(device).eval(), Encoder(options.work / "text"), stops, options.tokens)
    return judge.results(cases, options.tries)


def by_server(options: argparse.Namespace, cases: list[scores.Case]) -> list[scores.Result]:
    """Results of a server."""
    # Here, as a machine that only trains has neither a client nor what writes clips.
    from training.asking import Asking

    with Asking(options.url) as asking:
        return asking.results(cases, options.modes.split(","), options.seed, options.at_once)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="training.evaluate", description=__doc__)
    ways = parser.add_subparsers(required=True)
    twin = ways.add_parser("twin", help="the twin itself, in this process")
    twin.add_argument("work", type=pathlib.Path, metavar="WORK", help="where the model was trained")
    twin.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda (default %(default)s)")
    twin.add_argument("--size", choices=["full", "tiny"], default="full", help="dimensions (default %(default)s)")
    twin.add_argument("--tokens", type=int, default=32768, metavar="N", help="of a batch (default %(default)s)")
    twin.add_argument(
        "--tries", type=int, default=25, metavar="N",
        help="replies of a skill that are other than wanted and are generated and judged (default %(default)s)",
    )  # fmt: skip
    twin.set_defaults(results=by_twin)
    server = ways.add_parser("server", help="a running server, through its API")
    server.add_argument("url", metavar="URL", help="http://HOST:PORT")
    server.add_argument("--at-once", type=int, default=4, metavar="N", help="requests at once (default %(default)s)")
    server.add_argument("--modes", default="greedy,sampled", help="which of them (default %(default)s)")
    server.set_defaults(results=by_server)
    for way in (twin, server):
        way.add_argument("--cases", type=int, default=200, metavar="N", help="of a skill (default %(default)s)")
        way.add_argument("--skills", metavar="A,B", help="some skills only")
        way.add_argument("--seed", type=int, default=1, metavar="S", help="of cases and draws (default %(default)s)")
        way.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures there")
        way.add_argument("--failures", type=pathlib.Path, metavar="FILE", help="write what failed there, to be read")
    return parser


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = arguments()
    options = parser.parse_args()
    begun = time.monotonic()
    try:
        cases = scores.cases_of(scores.chosen_skills(options.skills), options.cases, options.seed)
    except ValueError as error:
        parser.error(str(error))
    results = options.results(options, cases)
    found = scores.figures(results)
    print(scores.table(found), end="")
    print(f"{len(results)} replies in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.failures is not None:
        scores.write_failures(options.failures, results)
    return 0 if scores.good_enough(found) else 1


if __name__ == "__main__":
    sys.exit(main())
