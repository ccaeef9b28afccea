# SPDX-License-Identifier: Apache-2.0
"""Applies a series of patches to an installed package, inside the image that is built: all of them or none.

    apply_patches.py SERIES.json PACKAGE

A copy of this file runs in the image, so it imports nothing but the standard library. SERIES.json lists the patches in
order, each with `file` (beside SERIES.json) and `strip`. Every patch is tried in the directory that holds PACKAGE,
forward only and without fuzz. Those that do not apply are listed on standard output, one line of JSON each after the
word PATCH-PROBLEM, and the exit code is then 1.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys


def run_patch(directory: str, path: str, strip: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Run patch in a directory; it asks nothing, guesses nothing and leaves no backups."""
    command = ["patch", "--directory", directory, "--input", path, f"--strip={strip}", "--fuzz=0", "--batch"]
    command += ["--no-backup-if-mismatch", "--reject-file=-", *options]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def problem_of(directory: str, path: str, strip: int) -> dict[str, str] | None:
    """Apply one patch and return None, or why it does not apply: it is `in` already, or it is `stale`."""
    done = run_patch(directory, path, strip, "--forward", "--dry-run")
    if done.returncode == 0:
        run_patch(directory, path, strip, "--forward").check_returncode()
        return None
    backward = run_patch(directory, path, strip, "--reverse", "--force", "--dry-run")
    said = [line for line in done.stdout.splitlines() if "FAILED" in line or "can't find" in line]
    reason = "in" if backward.returncode == 0 else "stale"
    return {"patch": os.path.basename(path), "reason": reason, "said": (said or [done.stdout.strip()])[0]}


def main(arguments: list[str]) -> int:
    """Apply the series. Returns 0, or 1 when any patch does not apply; the image is not made then."""
    series, package = arguments
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        print(f"PATCH-PROBLEM {json.dumps({'patch': '', 'reason': 'package', 'said': f'{package} is not installed'})}")
        return 1
    directory = os.path.dirname(next(iter(spec.submodule_search_locations)))
    with open(series, encoding="utf-8") as file:
        patches = json.load(file)
    failed = False
    for patch in patches:
        path = os.path.join(os.path.dirname(series), patch["file"])
        problem = problem_of(directory, path, patch["strip"])
        if problem:
            failed = True
            print(f"PATCH-PROBLEM {json.dumps(problem)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
