#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The miniature checkpoint in a host's state directory: written when absent or damaged, verified always."""

from __future__ import annotations

DOCUMENTATION = r"""
module: miniature_checkpoint
short_description: Keep a complete miniature checkpoint on a host
version_added: 0.1.0
description:
  - Verifies every file of the miniature by size and SHA-256 against the manifest that the engine wrote with it.
  - When it is absent or damaged, has the engine write it anew beside its place and puts it there when it is
    whole, so that an interrupted or failed run leaves nothing half-written.
  - Never touches a checkpoint directory of your own.
extends_documentation_fragment:
  - sparkpair.serving.state
options:
  trained:
    description: Whether it is the trained miniature that comes with the engine, instead of one with random weights.
    type: bool
    default: false
  seed:
    description: The seed of the random weights.
    type: int
    default: 0
  engine:
    description: The serving engine.
    type: str
    choices: [sparkpair]
    default: sparkpair
  engine_command:
    description: The engine's program as a list of words.
    type: list
    elements: str
    required: true
  engine_digest:
    description:
      - The digest of the engine's code. A trained miniature that came with another engine is written anew. Empty takes
        any.
    type: str
    default: ""
  environment:
    description: Environment variables that the engine gets beside its account's own.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Says whether it would be written, and writes nothing.
  diff_mode:
    support: full
    description: Shows the state and what was wrong.
  idempotent:
    support: full
    description: A complete checkpoint is left alone.
author:
  - The sparkpair maintainers (@sparkpair)
seealso:
  - module: sparkpair.serving.pair_probe
"""

EXAMPLES = r"""
- name: Keep the miniature complete
  sparkpair.serving.miniature_checkpoint:
    state_dir: ~/.local/state/sparkpair/spark-head
    engine_command: [sparkpair]
    seed: 0
"""

RETURN = r"""
checkpoint:
  description:
    - C(path), C(state), C(problems) and C(digest) after the run; in check mode as they are now.
  returned: success
  type: dict
  sample:
    path: /home/spark/.local/state/sparkpair/spark-head/checkpoints/miniature-seed0
    state: complete
    problems: []
    digest: 8d6f3f5f0c3b0a0f
"""

import os
import shutil
import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkpair.serving.plugins.module_utils import _checkpoint
from ansible_collections.sparkpair.serving.plugins.module_utils._engines import PROCESSES
from ansible_collections.sparkpair.serving.plugins.module_utils._rank_process import base_environment

ARGUMENTS = {
    "state_dir": {"type": "path", "required": True},
    "trained": {"type": "bool", "default": False},
    "seed": {"type": "int", "default": 0},
    "engine": {"type": "str", "choices": sorted(PROCESSES), "default": "sparkpair"},
    "engine_command": {"type": "list", "elements": "str", "required": True},
    "engine_digest": {"type": "str", "default": ""},
    "environment": {"type": "dict", "default": {}},
}
# Writing takes seconds; a machine that is busy with other things may need many times that.
WRITE_TIMEOUT_S = 600


class NotWritten(Exception):
    """The checkpoint could not be written. The text says why and what to do; nothing was left behind."""


def write(path: str, argv_for: Any, environment: dict[str, str], origin: str) -> None:
    """Have the engine write a checkpoint and put it at `path` in place of what is there. Raises NotWritten.

    `argv_for` returns the engine's command for a directory. `origin` is the digest of the engine that is noted
    beside the files, if any.
    """
    unfinished = f"{path}.unfinished"
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        _run(argv_for(unfinished), environment, path)
        if origin:
            with open(os.path.join(unfinished, _checkpoint.ORIGIN), "w", encoding="utf-8") as file:
                file.write(f"{origin}\n")
        if os.path.isdir(path):
            shutil.rmtree(path)
        os.rename(unfinished, path)
    except OSError as error:
        raise NotWritten(
            f"The miniature checkpoint {path} could not be written: {error.strerror} ({error.filename}). "
            "Put that right, or set sparkpair_state_dir to another directory."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _run(argv: list[str], environment: dict[str, str], path: str) -> None:
    """Run the engine's command. Raises NotWritten with what the engine said last."""
    try:
        done = subprocess.run(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=WRITE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise NotWritten(
            f"The engine did not write the miniature checkpoint {path} within {WRITE_TIMEOUT_S} s. "
            "Look at what keeps this host busy, then run again."
        ) from error
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        reason = lines[-1].removeprefix("error: ").rstrip(".")
        free = shutil.disk_usage(os.path.dirname(path)).free
        raise NotWritten(
            f"The engine could not write the miniature checkpoint {path} (exit code {done.returncode}): {reason}. "
            f"That disk has {free / (1 << 20):.0f} MiB free; sparkpair_state_dir decides where the checkpoint goes."
        )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    options = module.params
    engine = PROCESSES[options["engine"]]
    seed = None if options["trained"] else options["seed"]
    digest = options["engine_digest"]
    path = _checkpoint.miniature_path(os.path.abspath(options["state_dir"]), seed)
    before = _checkpoint.miniature(path, seed, digest)
    if before["state"] == "complete":
        module.exit_json(changed=False, checkpoint=before)
    told = "\n".join([f"{path}: {before['state']}", *before["problems"]]) + "\n"
    diff = {"before": told, "after": f"{path}: complete\n"}
    if module.check_mode:
        module.exit_json(changed=True, checkpoint=before, diff=diff)
    try:
        write(
            path,
            lambda place: engine.miniature_argv(options["engine_command"], place, seed),
            {**base_environment(), **options["environment"]},
            digest if options["trained"] else "",
        )
    except NotWritten as error:
        module.fail_json(msg=str(error), checkpoint=before)
    after = _checkpoint.miniature(path, seed, digest)
    if after["state"] != "complete":
        module.fail_json(
            msg=f"The engine wrote {path}, and it is not complete: {'; '.join(after['problems'])}. "
            "Look at the disk, then run again.",
            checkpoint=after,
        )
    module.exit_json(changed=True, checkpoint=after, diff=diff)


if __name__ == "__main__":
    main()
