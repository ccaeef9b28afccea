# SPDX-License-Identifier: Apache-2.0
"""What every measurement here does with its figures: a table for people, and both into files if asked."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the files."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, beside printing it")


def publish(options: argparse.Namespace, table: str, figures: dict[str, Any]) -> None:
    """Print the table, and write it and the figures where the options say."""
    print(table, end="")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(table, encoding="utf-8")
