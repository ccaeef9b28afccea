# SPDX-License-Identifier: Apache-2.0
"""`python -m training WORK --minutes M --plan P`: train for some minutes, from where the last run in WORK ended."""

from __future__ import annotations

from training.arguments import run_arguments, settings_of
from training.train import FINISHING_RATE, RATE, Run, log_to


def main() -> None:
    """Run the command line."""
    usual = f"{RATE}, with EXL3 experts {FINISHING_RATE}"
    settings = settings_of(run_arguments("training", __doc__, usual).parse_args())
    with log_to(settings.work / "log.jsonl") as say:
        Run(settings).train(say)


if __name__ == "__main__":
    main()
