# SPDX-License-Identifier: Apache-2.0
"""The arguments of `sparkpair bench` and what it does with them."""

from __future__ import annotations

import argparse
import pathlib
import sys

from sparkpair.bench.plan import Plan
from sparkpair.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments; lists are written with commas."""
    plan = Plan()
    parser.add_argument("url", metavar="URL", help="the server, as http://HOST:PORT")
    parser.add_argument("--model", default="", metavar="ID", help="model id (default: the first the server lists)")
    parser.add_argument("--key-file", type=pathlib.Path, metavar="FILE", help="file whose first line is the API key")
    parser.add_argument("--modes", type=_words, default=plan.modes, metavar="M,...", help="decode,prefill,reuse,fill")
    parser.add_argument("--kinds", type=_words, default=plan.kinds, metavar="K,...", help="structured,prose")
    parser.add_argument("--streams", type=_numbers, default=plan.streams, metavar="N,...", help="requests of a wave")
    parser.add_argument("--tokens", type=int, default=plan.tokens, metavar="N", help="length of decoded replies")
    parser.add_argument("--words", type=_numbers, default=plan.words, metavar="N,...", help="sizes of long prompts")
    parser.add_argument("--repeats", type=int, default=plan.repeats, metavar="N", help="waves of each kind; the median")
    parser.add_argument("--timeout", type=float, default=360.0, metavar="S", help="for one read of a reply")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="everything")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="tables, which are printed too")


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _words(text))


def bench(options: argparse.Namespace) -> int:
    """Measure a server and write the results. Raises UserError."""
    plan = Plan(options.modes, options.kinds, options.streams, options.tokens, options.words, options.repeats)
    plan.check()
    from sparkpair.bench.client import Client
    from sparkpair.bench.report import markdown, run, write_both

    client = Client(options.url, model=options.model, key=_key(options.key_file), timeout_s=options.timeout)
    document = run(client, plan, lambda line: print(line, file=sys.stderr, flush=True))
    print(markdown(document), end="")
    write_both(document, options.json, options.markdown)
    return 0


def _key(path: pathlib.Path | None) -> str:
    if path is None:
        return ""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--key-file {path} cannot be read: {error.strerror}") from None
    return lines[0].strip() if lines else ""
