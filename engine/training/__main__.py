# SPDX-License-Identifier: Apache-2.0
"""`python -m training WORK --minutes M --plan P`: train for some minutes, from where the last run in WORK ended."""

from __future__ import annotations

import argparse
import pathlib

from training.train import FINISHING_RATE, RATE, Run, Settings, log_to


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="training", description=__doc__)
    parser.add_argument("work", type=pathlib.Path, metavar="WORK", help="text files, weights and log; made if missing")
    parser.add_argument("--minutes", type=float, required=True, metavar="M", help="of this run")
    parser.add_argument("--plan", type=float, required=True, metavar="P", help="minutes of all runs together")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="dimensions (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=32768, metavar="N", help="of a batch (default %(default)s)")
    usual = f"highest rate (default {RATE}, with EXL3 experts {FINISHING_RATE})"
    parser.add_argument("--rate", type=float, metavar="R", help=usual)
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that make batches")
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--no-capture", dest="capture", action="store_false", help="run without CUDA graphs")
    options = vars(parser.parse_args())
    with log_to(options["work"] / "log.jsonl") as say:
        Run(Settings(**options)).train(say)


if __name__ == "__main__":
    main()
