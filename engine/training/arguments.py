# SPDX-License-Identifier: Apache-2.0
"""The arguments that every run of the training loop has."""

from __future__ import annotations

import argparse
import pathlib

from training.train import Settings


def run_arguments(prog: str, description: str | None, rate: str) -> argparse.ArgumentParser:
    """A parser of Settings' fields; `rate` says what the highest learning rate is by default."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("work", type=pathlib.Path, metavar="WORK", help="text files, weights and log; made if missing")
    parser.add_argument("--minutes", type=float, required=True, metavar="M", help="of this run")
    parser.add_argument("--plan", type=float, required=True, metavar="P", help="minutes of all runs together")
    parser.add_argument("--size", choices=["full", "tiny"], default="full", help="dimensions (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=32768, metavar="N", help="of a batch (default %(default)s)")
    parser.add_argument("--rate", type=float, metavar="R", help=f"highest rate (default {rate})")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that make batches")
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--no-capture", dest="capture", action="store_false", help="run without CUDA graphs")
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that were given."""
    return Settings(**vars(options))
