# SPDX-License-Identifier: Apache-2.0
"""The command line `sparkpair`. Heavy imports happen inside the commands that need them: `version` answers at once."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from sparkpair import __version__
from sparkpair.api.arguments import add_arguments, http_settings
from sparkpair.bench import command as bench
from sparkpair.comm import roce_settings
from sparkpair.errors import UserError

if TYPE_CHECKING:
    from sparkpair.settings import ServeSettings

DRAFTING = ("drafter", "draft_policy")
DEFAULT_PORT = 8888
DEFAULT_MASTER_PORT = 29551


class Parser(argparse.ArgumentParser):
    """An argument parser that reports in the same one line as every other error."""

    def error(self, message: str) -> NoReturn:
        """Print the message and where to find help; exit code 2."""
        print(f"error: {message} (see `{self.prog} --help`)", file=sys.stderr)
        raise SystemExit(UserError.exit_code)


def _world_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=pathlib.Path, metavar="MODEL", help="checkpoint directory")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="number of ranks (default %(default)s)")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="this rank, from 0 (default %(default)s)")
    parser.add_argument("--context", type=int, default=0, metavar="N", help="prompt-plus-reply window; 0: what fits")
    parser.add_argument(
        "--drafter",
        default="none",
        metavar="none|mtp|DIR",
        help="what guesses tokens ahead: nothing, the checkpoint's MTP head, or a DFlash2 drafter's directory",
    )
    parser.add_argument(
        "--draft-policy",
        default="auto",
        metavar="P",
        help="how many guesses a round: auto (the default), 0, N, a[:LOW:HIGH], cN:P; "
        "with a DFlash2 drafter fN, fa, fcN:P, fncN:P[:B]",
    )
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="requests at once (default %(default)s)")
    parser.add_argument("--window", type=int, default=32, metavar="ROWS", help="rows of all verify windows together")
    parser.add_argument(
        "--cache-gib", type=float, default=0.25, metavar="X", help="pool and kept prompts beyond the window at most"
    )
    parser.add_argument("--cache-entries", type=int, default=32, metavar="N", help="kept prompts at most; 0: none")
    parser.add_argument(
        "--dtype", choices=["fp32", "bf16"], default="fp32", help="form of activations (default %(default)s)"
    )
    parser.add_argument(
        "--kv", choices=["fp32", "bf16", "fp8"], default="fp32", help="form of the pool's rows (default %(default)s)"
    )
    parser.add_argument(
        "--dense", choices=["bf16", "fp8", "q4"], default="bf16", help="form of dense weights (default %(default)s)"
    )
    parser.add_argument(
        "--experts",
        choices=["decoded", "packed"],
        default="decoded",
        help="EXL3 experts: decoded while loading (fast, large) or at every use (small); default %(default)s",
    )
    parser.add_argument(
        "--memory-reserve-gib", type=float, metavar="X", help="memory to leave alone (default: a tenth)"
    )


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    _world_arguments(parser)
    parser.add_argument("--master", default="", metavar="ADDR", help="rank 0's address on the link")
    parser.add_argument("--master-port", type=int, default=DEFAULT_MASTER_PORT, metavar="P")
    parser.add_argument("--name", default="GLM-5.3-Flash", metavar="ID", help="model id of the API")
    parser.add_argument("--alias", action="append", default=[], metavar="ID", help="further id; * accepts any")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="HTTP bind address (default %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, metavar="P", help="HTTP port (default %(default)s)")
    parser.add_argument("--copy-max", type=int, default=15, metavar="N", help="copy drafts of a window; 0: none")
    parser.add_argument("--fill-budget-ms", type=int, default=200, metavar="MS", help="prompt reading beside decoding")
    parser.add_argument("--max-tokens", type=int, default=32768, metavar="N", help="reply budget when none is named")
    parser.add_argument("--thinking", action=argparse.BooleanOptionalAction, default=True, help="think by default")
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu, cuda or cuda:N (default %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="CPU threads")
    parser.add_argument("--join-timeout", type=float, default=600.0, metavar="S", help="wait for the other ranks")
    parser.add_argument("--peer-timeout", type=float, default=300.0, metavar="S", help="a rank later than this is lost")
    parser.add_argument(
        "--stuck-after",
        type=float,
        default=60.0,
        metavar="S",
        help="a step that takes longer prints every thread's stack on every rank; 0: never (default %(default)g)",
    )
    parser.add_argument("--stuck-exit", action="store_true", help="all ranks end then, with code 4")
    roce_settings.add_arguments(parser)
    parser.add_argument("--check-args", action="store_true", help="check the arguments and the checkpoint, then exit")
    add_arguments(parser)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(prog="sparkpair", description="A tensor-parallel serving engine for glm5_next.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _serve_arguments(commands.add_parser("serve", help="run one rank"))
    _world_arguments(commands.add_parser("plan", help="print a rank's startup estimate"))
    version = commands.add_parser("version", help="print the version and a digest of the code")
    version.add_argument("--json", action="store_true")
    info = commands.add_parser("info", help="describe a checkpoint")
    info.add_argument("model", type=pathlib.Path, metavar="MODEL")
    info.add_argument("--json", action="store_true")
    miniature = commands.add_parser("miniature", help="write a small checkpoint of the real architecture")
    miniature.add_argument("directory", type=pathlib.Path, metavar="DIR")
    miniature.add_argument("--trained", action="store_true", help="the one that comes with the package, not random")
    miniature.add_argument("--seed", type=int, metavar="S")
    miniature.add_argument("--config", type=pathlib.Path, metavar="FILE", help="JSON with text_config, vision_config")
    miniature.add_argument(
        "--experts",
        choices=["bf16", "exl3"],
        help="how routed experts are stored (default bf16)",
    )
    drafter = commands.add_parser("miniature-drafter", help="write a small random DFlash2 drafter for a model")
    drafter.add_argument("directory", type=pathlib.Path, metavar="DIR")
    drafter.add_argument("--target", type=pathlib.Path, required=True, metavar="MODEL", help="what it drafts for")
    drafter.add_argument("--seed", type=int, default=1, metavar="S")
    logits = commands.add_parser("logits", help="write the logits of every position for given token ids")
    logits.add_argument("model", type=pathlib.Path, metavar="MODEL")
    logits.add_argument("--ids", type=pathlib.Path, required=True, metavar="FILE", help="JSON list of token ids")
    logits.add_argument("--tp", type=int, default=1, metavar="N", help="ranks, all started on this machine")
    logits.add_argument("--step", action="store_true", help="one token at a time instead of the whole prompt")
    logits.add_argument("-o", "--output", type=pathlib.Path, required=True, metavar="OUT.npz")
    bench.add_arguments(commands.add_parser("bench", help="measure a server: decode, prefill, reuse, concurrent fill"))
    return parser


def serve_settings(options: argparse.Namespace) -> ServeSettings:
    from sparkpair.checkpoint.forms import WeightForms
    from sparkpair.settings import ServeSettings

    settings = ServeSettings(
        model=options.model,
        tp=options.tp,
        rank=options.rank,
        master=options.master,
        master_port=options.master_port,
        name=options.name,
        aliases=tuple(options.alias),
        host=options.host,
        port=options.port,
        context=options.context,
        parallel=options.parallel,
        window=options.window,
        copy_max=options.copy_max,
        drafter=options.drafter,
        draft_policy=options.draft_policy,
        fill_budget_ms=options.fill_budget_ms,
        cache_entries=options.cache_entries,
        cache_gib=options.cache_gib,
        max_tokens=options.max_tokens,
        thinking=options.thinking,
        threads=options.threads,
        device=options.device,
        memory_reserve_gib=options.memory_reserve_gib,
        dtype=options.dtype,
        kv=options.kv,
        forms=WeightForms(dense=options.dense, experts=options.experts),
        join_timeout=options.join_timeout,
        peer_timeout=options.peer_timeout,
        stuck_after=options.stuck_after,
        stuck_exit=options.stuck_exit,
        roce=roce_settings.roce_settings(options),
        http=http_settings(options),
    )
    settings.check()
    return settings


def _serve(options: argparse.Namespace) -> int:
    settings = serve_settings(options)
    if options.check_args:
        from sparkpair.checked import check_served

        check_served(settings)
        print("arguments ok")
        return 0
    from sparkpair.serve import serve

    return serve(settings)


def _plan(options: argparse.Namespace) -> int:
    # What `plan` does not ask for is as `serve` has it.
    served = build_parser().parse_args(["serve", str(options.model), "--master", "127.0.0.1"])
    settings = serve_settings(argparse.Namespace(**vars(served) | vars(options)))
    from sparkpair.serve import prepare

    prepare(settings)
    return 0


def _version(options: argparse.Namespace) -> int:
    from sparkpair.identity import code_digest

    fields = {"version": __version__, "code_digest": code_digest()}
    print(json.dumps(fields) if options.json else f"sparkpair {__version__} ({fields['code_digest'][:12]})")
    return 0


def _info(options: argparse.Namespace) -> int:
    from sparkpair.info import describe, render

    found = describe(options.model)
    print(json.dumps(found, indent=2) if options.json else render(found))
    return 0


def _miniature(options: argparse.Namespace) -> int:
    if options.trained:
        return _trained_miniature(options)
    from sparkpair.checkpoint.miniature import DEFAULT_SEED, write_miniature

    overrides = {}
    if options.config is not None:
        try:
            overrides = json.loads(options.config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"--config {options.config} cannot be read as JSON: {error}") from None
        if not isinstance(overrides, dict):
            raise UserError(f"--config {options.config} is not a JSON object")
    seed = DEFAULT_SEED if options.seed is None else options.seed
    write_miniature(options.directory, seed=seed, overrides=overrides, experts=options.experts or "bf16")
    print(f"wrote {options.directory}")
    return 0


def _trained_miniature(options: argparse.Namespace) -> int:
    from sparkpair.checkpoint.trained import copy_trained

    idle = [f"--{name}" for name in ("seed", "config", "experts") if getattr(options, name) is not None]
    if idle:
        raise UserError(f"--trained takes the weights as they are; leave out {', '.join(idle)}")
    copy_trained(options.directory)
    print(f"wrote {options.directory}")
    return 0


def _miniature_drafter(options: argparse.Namespace) -> int:
    from sparkpair.checkpoint.miniature_drafter import write_drafter

    write_drafter(options.directory, options.target, seed=options.seed)
    print(f"wrote {options.directory}")
    return 0


def _logits(options: argparse.Namespace) -> int:
    from sparkpair.logits import write_logits

    write_logits(options.model, options.ids, tp=options.tp, step=options.step, output=options.output)
    print(f"wrote {options.output}")
    return 0


COMMANDS = {
    "serve": _serve,
    "plan": _plan,
    "version": _version,
    "info": _info,
    "miniature": _miniature,
    "miniature-drafter": _miniature_drafter,
    "logits": _logits,
    "bench": bench.bench,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors that a person can fix become one line on stderr and an exit code of their own."""
    options = build_parser().parse_args(arguments)
    try:
        return COMMANDS[options.command](options)
    except UserError as error:
        print(f"{error.label}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
